# Flattens the YAML that people write for cloud-init: one line `path/to/key=value` for each scalar, list items by
# number. In values, a backslash, a line feed and a tab are written \\, \n and \t.
# Knows: block maps and lists, compact lists of maps, quoted and plain scalars over several lines, | and > blocks,
# flow [] and {}, comments. Does not know: anchors, tags, several documents, keys over several lines.

{ sub(/\r$/, ""); line[++lines] = $0 }

END {
    at = 1
    if (line[1] ~ /^---/) at = 2
    node("", 0)
}

# ---- lines ----

function indent(text) { match(text, /^ */); return RLENGTH }
function content(text) { sub(/^ */, "", text); return text }
function is_content(text) { return text !~ /^[ \t]*(#.*)?$/ }
function spaces(n) { return sprintf("%" n "s", "") }

function more(least) { # is there another line of content, indented at least so far?
    while (at <= lines && !is_content(line[at])) at++
    return at <= lines && indent(line[at]) >= least && line[at] !~ /^(---|\.\.\.)/
}

function emit(path, value) {
    gsub(/\\/, "\\\\", value)
    gsub(/\n/, "\\n", value)
    gsub(/\t/, "\\t", value)
    print path "=" value
}

function join(path, key) { return path == "" ? key : path "/" key }

# ---- blocks ----

function node(path, least,    depth, text) {
    if (!more(least)) { emit(path, ""); return }
    depth = indent(line[at])
    text = content(line[at])
    if (text ~ /^-( |$)/) list(path, depth)
    else if (key_length(text) > 0) map(path, depth)
    else { at++; value(path, text, least - 1) }
}

function list(path, depth,    n, text, rest) {
    n = 0
    while (more(depth) && indent(line[at]) == depth && line[at] ~ /^ *-( |$)/) {
        text = content(line[at])
        rest = substr(text, 2)
        # What stands behind the dash is a line of its own, indented to where it stands.
        line[at] = spaces(depth + 1) rest
        node(join(path, n++), depth + 1)
    }
}

function map(path, depth,    text, length_of_key, key, rest) {
    while (more(depth) && indent(line[at]) == depth) {
        text = content(line[at])
        length_of_key = key_length(text)
        if (length_of_key == 0) { print "yaml: line " at " is no key: " text > "/dev/stderr"; exit 1 }
        key = unquoted(substr(text, 1, length_of_key))
        rest = content(substr(text, length_of_key + 2))
        at++
        if (is_content(rest)) value(join(path, key), rest, depth)
        else if (more(depth) && indent(line[at]) == depth && line[at] ~ /^ *-( |$)/) list(join(path, key), depth)
        else node(join(path, key), depth + 1)
    }
}

function key_length(text) { # of the key that a line starts with, 0 if none
    if (match(text, /^"([^"\\]|\\.)*" *:( |$)/) || match(text, /^'[^']*' *:( |$)/) ||
        match(text, /^[^][{}"'#&*!|>%@`, -][^:#]*:( |$)/) || match(text, /^-[^ ][^:#]*:( |$)/)) {
        return RLENGTH - (substr(text, RLENGTH, 1) == " " ? 2 : 1)
    }
    return 0
}

# ---- values ----

function value(path, text, parent,    first) {
    first = substr(text, 1, 1)
    if (first == "|" || first == ">") { emit(path, block(text, parent)); return }
    if (first == "[" || first == "{") {
        while (!balanced(text) && more(0)) text = text " " content(line[at++])
        flow = text
        place = 1
        flow_node(path)
        return
    }
    if (first == "\"" || first == "'") {
        while (!closed(text, first) && at <= lines) text = text " " content(line[at++])
        emit(path, unquoted(text))
        return
    }
    text = without_comment(text)
    while (more(parent + 1)) text = text " " without_comment(content(line[at++]))
    emit(path, text == "~" || text == "null" ? "" : text)
}

function block(header, parent,    folded, keep, strip, depth, text, blank, out, previous) {
    folded = header ~ /^>/
    strip = header ~ /^.[0-9]*-/
    keep = header ~ /^.[0-9]*\+/
    depth = match(header, /[0-9]/) ? parent + substr(header, RSTART, 1) : -1
    blank = 0
    out = ""
    previous = ""
    while (at <= lines && (line[at] ~ /^ *$/ || indent(line[at]) > parent)) {
        text = line[at++]
        if (text ~ /^ *$/ && (depth < 0 || length(text) <= depth)) { blank++; continue }
        if (depth < 0) depth = indent(text)
        text = substr(text, depth + 1)
        if (out != "" || previous != "") {
            if (!folded || text ~ /^[ \t]/ || previous ~ /^[ \t]/) out = out "\n" newlines(blank)
            else out = out (blank ? newlines(blank) : " ")
        } else out = newlines(blank)
        out = out text
        previous = text
        blank = 0
    }
    if (previous == "") return keep ? newlines(blank) : ""
    return out (strip ? "" : "\n") (keep ? newlines(blank) : "")
}

function newlines(n,    out) { out = ""; while (n-- > 0) out = out "\n"; return out }

function without_comment(text) {
    sub(/[ \t]+#.*$/, "", text)
    sub(/[ \t]+$/, "", text)
    return text
}

function closed(text, quote) {
    return quote == "\"" ? text ~ /^"([^"\\]|\\.)*"/ : text ~ /^'([^']|'')*'([^']|$)/
}

function unquoted(text,    out, i, c) {
    if (text ~ /^'/) {
        match(text, /^'([^']|'')*'/)
        text = substr(text, 2, RLENGTH - 2)
        gsub(/''/, "'", text)
        return text
    }
    if (text !~ /^"/) { sub(/ +$/, "", text); return text }
    match(text, /^"([^"\\]|\\.)*"/)
    text = substr(text, 2, RLENGTH - 2)
    out = ""
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "\\") {
            c = substr(text, ++i, 1)
            if (c == "n") c = "\n"
            else if (c == "t") c = "\t"
            else if (c == "e") c = "\033"
        }
        out = out c
    }
    return out
}

# ---- flow: [a, "b", {c: d}] ----

function balanced(text,    i, c, depth, quote) {
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (quote != "") {
            if (c == "\\" && quote == "\"") i++
            else if (c == quote) quote = ""
        } else if (c == "\"" || c == "'") quote = c
        else if (c == "[" || c == "{") depth++
        else if (c == "]" || c == "}") depth--
    }
    return depth <= 0
}

function skip_blanks() { while (substr(flow, place, 1) ~ /^[ \t]$/) place++ }

function flow_node(path,    open, n, key) {
    skip_blanks()
    open = substr(flow, place, 1)
    if (open != "[" && open != "{") { emit(path, flow_scalar(",]}")); return }
    place++
    n = 0
    for (skip_blanks(); place <= length(flow) && substr(flow, place, 1) !~ /^[]}]$/; skip_blanks()) {
        if (open == "[") flow_node(join(path, n++))
        else {
            key = flow_scalar(":,}")
            skip_blanks()
            if (substr(flow, place, 1) == ":") place++
            flow_node(join(path, key))
        }
        skip_blanks()
        if (substr(flow, place, 1) == ",") place++
    }
    place++
}

function flow_scalar(stops,    rest, i) {
    rest = substr(flow, place)
    if (match(rest, /^"([^"\\]|\\.)*"/) || match(rest, /^'([^']|'')*'/)) {
        place += RLENGTH
        return unquoted(substr(rest, 1, RLENGTH))
    }
    for (i = 1; i <= length(rest) && index(stops, substr(rest, i, 1)) == 0; i++) continue
    place += i - 1
    rest = substr(rest, 1, i - 1)
    sub(/ +$/, "", rest)
    return rest == "~" || rest == "null" ? "" : rest
}
