"""Label and field selectors: which objects a client wants to see."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from .errors import bad_request
from .store import Entry

Requirement = Callable[[Mapping[str, str]], bool]
_KEY: Final = re.compile(
    r"([a-z0-9A-Z]([-a-z0-9A-Z.]*[a-z0-9A-Z])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"
)
_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_SET: Final = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)\Z")
_COMPARE: Final = re.compile(r"(?P<key>[^=!<>\s]+)\s*(?P<operator>==|=|!=|>|<)\s*(?P<value>[^=!<>]*)\Z")


def _split(text: str) -> list[str]:
    """At the commas that are not inside parentheses."""
    parts: list[str] = []
    depth = start = 0
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _unable(text: str, why: str) -> Exception:
    return bad_request(
        f"unable to parse requirement: {why}" if why else f"unable to parse requirement: {text}"
    )


def _checked_key(key: str) -> str:
    if not _KEY.match(key):
        raise _unable(
            key,
            f'<nil>: Invalid value: "{key}": name part must consist of alphanumeric '
            "characters, '-', '_' or "
            "'.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
            "'123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        )
    return key


def _checked_value(key: str, value: str) -> str:
    value = value.strip()
    if len(value) > 63 or not _VALUE.match(value):
        raise _unable(
            value,
            f'values[0][{key}]: Invalid value: "{value}": a valid label must be an empty string '
            "or consist of "
            "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
            "(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
            "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        )
    return value


def parse_labels(text: str) -> list[Requirement]:
    """The requirements of a label selector; all must hold."""
    if not text.strip():
        return []
    return [_label_requirement(part.strip()) for part in _split(text)]


def _label_requirement(text: str) -> Requirement:
    if found := _SET.match(text):
        key = _checked_key(found["key"])
        values = frozenset(_checked_value(key, value) for value in found["values"].split(","))
        if found["operator"] == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: key not in labels or labels[key] not in values
    if found := _COMPARE.match(text):
        key, operator = _checked_key(found["key"]), found["operator"]
        value = _checked_value(key, found["value"])
        if operator in ("=", "=="):
            return lambda labels: labels.get(key) == value
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return _numeric(key, operator, value)
    if text.startswith("!"):
        missing = _checked_key(text[1:].strip())
        return lambda labels: missing not in labels
    if not text or " " in text or "(" in text:
        raise _unable(text, f'found \'{text}\', expected: identifier, "!", "in", "notin", =, ==, !=, <, >')
    present = _checked_key(text)
    return lambda labels: present in labels


def _numeric(key: str, operator: str, value: str) -> Requirement:
    try:
        bound = int(value)
    except ValueError:
        raise _unable(
            value,
            f"values[0]: Invalid value: \"{value}\": for 'Gt', 'Lt' operators, the value must be an integer",
        ) from None

    def holds(labels: Mapping[str, str]) -> bool:
        try:
            actual = int(labels[key])
        except (KeyError, ValueError):
            return False
        return actual > bound if operator == ">" else actual < bound

    return holds


FieldTerm = tuple[str, str, bool]
"""label, value, and whether it must be equal"""


def parse_fields(text: str) -> list[FieldTerm]:
    terms: list[FieldTerm] = []
    if not text:
        return terms
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        found = re.match(r"(?P<label>(?:[^=!\\]|\\.|!(?!=))*)(?P<operator>!=|==|=)(?P<value>.*)\Z", part)
        if not found:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        value = re.sub(r"\\(.)", r"\1", found["value"])
        terms.append((found["label"].strip(), value, found["operator"] != "!="))
    return terms


_FALSE_WHEN_MISSING: Final = ("hostNetwork", "unschedulable")


def _as_text(obj: Any, path: tuple[str, ...]) -> str:
    """What stands at a path, as selectors name it."""
    if obj is None:
        return "false" if path[-1] in _FALSE_WHEN_MISSING else ""
    if isinstance(obj, bool):
        return "true" if obj else "false"
    return str(obj)


class Selection:
    """What a request selects: labels, fields, or everything."""

    def __init__(
        self,
        labels: str,
        fields: str,
        known: Mapping[str, tuple[str, ...]],
        namespaced: bool,
        custom: bool = True,
    ) -> None:
        self._labels = parse_labels(labels)
        self.name: str | None = None
        self.namespace: str | None = None
        self._metadata: list[FieldTerm] = []
        self._fields: list[tuple[tuple[str, ...], str, bool]] = []
        for label, value, equal in parse_fields(fields):
            if label == "metadata.name" or (label == "metadata.namespace" and namespaced):
                self._metadata.append((label, value, equal))
                if equal and label == "metadata.name":
                    self.name = value
                elif equal:
                    self.namespace = value
            elif label in known:
                self._fields.append((known[label], value, equal))
            elif known or custom:
                raise bad_request(f"field label not supported: {label}")
            else:
                only = '"metadata.name", "metadata.namespace"'
                raise bad_request(f'"{label}" is not a known field selector: only {only}')

    def __bool__(self) -> bool:
        return bool(self._labels or self._metadata or self._fields)

    def matches(self, entry: Entry) -> bool:
        for label, value, equal in self._metadata:
            actual = entry.name if label == "metadata.name" else entry.namespace
            if (actual == value) != equal:
                return False
        if self._labels:
            labels = entry.labels
            for holds in self._labels:
                if not holds(labels):
                    return False
        if self._fields:
            return all(
                (_as_text(entry.field(path), path) == value) == equal for path, value, equal in self._fields
            )
        return True


def selector_matches(selector: dict[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector as it stands in objects: matchLabels and matchExpressions."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for term in selector.get("matchExpressions") or []:
        key, operator, values = term.get("key"), term.get("operator"), term.get("values") or []
        held = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not held.get(operator, False):
            return False
    return True
