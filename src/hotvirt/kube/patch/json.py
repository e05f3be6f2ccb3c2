"""JSON patches (RFC 6902): a list of operations on JSON pointers (RFC 6901)."""

from __future__ import annotations

from typing import Any

from .copy import copied
from .merge import _same
from .problem import PatchError, PatchTestFailed

Path = list[str]
LARGEST_PATCH = 10_000
"""As kube-apiserver: more operations than this are refused."""


def apply_json_patch(doc: Any, ops: Any) -> Any:
    if not isinstance(ops, list):
        raise PatchError("A JSON patch is a list of operations.")
    if len(ops) > LARGEST_PATCH:
        raise PatchError(f"The JSON patch has {len(ops)} operations; {LARGEST_PATCH} are allowed.")
    result = copied(doc)
    for number, op in enumerate(ops):
        if not isinstance(op, dict) or not isinstance(op.get("op"), str):
            raise PatchError(f"Operation {number} of the JSON patch has no 'op'.")
        result = _apply(result, op, number)
    return result


def _apply(doc: Any, op: dict[str, Any], number: int) -> Any:
    path = _pointer(op, "path", number)
    match op["op"]:
        case "add":
            return _add(doc, path, _value(op, number))
        case "remove":
            return _remove(doc, path)
        case "replace":
            value = _value(op, number)
            if not path:
                return value
            # kube-apiserver lets a missing member of an object be replaced, but not a missing item of a list.
            if not isinstance(_find(doc, path[:-1]), dict):
                _find(doc, path)
            return _set(doc, path, value)
        case "move":
            source = _pointer(op, "from", number)
            if path[: len(source)] == source and path != source:
                raise PatchError(f"Operation {number} moves {op['from']!r} into itself.")
            value = _find(doc, source)
            return _add(_remove(doc, source), path, value)
        case "copy":
            return _add(doc, path, copied(_find(doc, _pointer(op, "from", number))))
        case "test":
            found = _find(doc, path, default=None) if path else doc
            if not _same(found, _value(op, number)):
                raise PatchTestFailed(f"Testing the value at {op['path']!r} failed.")
            return doc
        case other:
            raise PatchError(f"Operation {number} of the JSON patch is {other!r}, which does not exist.")


def _value(op: dict[str, Any], number: int) -> Any:
    if "value" not in op:
        raise PatchError(f"Operation {number} ({op['op']}) of the JSON patch has no 'value'.")
    return copied(op["value"])


def _pointer(op: dict[str, Any], field: str, number: int) -> Path:
    text = op.get(field)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchError(f"Operation {number} of the JSON patch has no valid {field!r}.")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


_MISSING = object()


def _find(doc: Any, path: Path, default: Any = _MISSING) -> Any:
    current = doc
    for step, part in enumerate(path):
        if isinstance(current, dict) and part in current:
            current = current[part]
        elif isinstance(current, list) and (index := _index(part, len(current) - 1)) is not None:
            current = current[index]
        elif default is not _MISSING and step == len(path) - 1:
            return default
        else:
            raise PatchError(f"The path {'/' + '/'.join(path)!r} does not exist.")
    return current


def _index(part: str, last: int) -> int | None:
    if not part.isdecimal() or (len(part) > 1 and part[0] == "0") or int(part) > last:
        return None
    return int(part)


def _add(doc: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    parent = _find(doc, path[:-1])
    if isinstance(parent, list):
        index = len(parent) if path[-1] == "-" else _index(path[-1], len(parent))
        if index is None:
            raise PatchError(f"The path {'/' + '/'.join(path)!r} is not a place in the list.")
        parent.insert(index, value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise PatchError(f"The path {'/' + '/'.join(path)!r} does not exist.")
    return doc


def _set(doc: Any, path: Path, value: Any) -> Any:
    parent = _find(doc, path[:-1])
    if isinstance(parent, list):
        parent[int(path[-1])] = value
    else:
        parent[path[-1]] = value
    return doc


def _remove(doc: Any, path: Path) -> Any:
    if not path:
        return None
    _find(doc, path)
    parent = _find(doc, path[:-1])
    if isinstance(parent, list):
        del parent[int(path[-1])]
    else:
        del parent[path[-1]]
    return doc
