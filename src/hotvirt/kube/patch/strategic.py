"""Strategic merge patches: merge patches that know which lists are sets or maps (`merge_keys.py`).

Directives: `$patch: replace|delete|merge` in a map, or in an item of a list; `$retainKeys`;
`$deleteFromPrimitiveList/<field>`; `$setElementOrder/<field>` (kubectl apply sends it always).
"""

from __future__ import annotations

from typing import Any

from .copy import copied
from .merge_keys import fields_of, fields_of_kind
from .problem import PatchError

PATCH = "$patch"
RETAIN = "$retainKeys"
DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
ORDER = "$setElementOrder/"
Fields = dict[str, str]


def apply_strategic_patch(doc: Any, patch: Any, kind: str) -> Any:
    """`doc` changed by `patch`; `kind` (as `Pod`) says which lists merge."""
    if not isinstance(patch, dict):
        raise PatchError("A strategic merge patch is an object.")
    return _merge_map(doc if isinstance(doc, dict) else {}, patch, fields_of_kind(kind))


def _merge_map(doc: dict[str, Any], patch: dict[str, Any], fields: Fields) -> dict[str, Any]:
    directive = patch.get(PATCH)
    if directive == "replace":
        return {key: _plain(value) for key, value in patch.items() if key != PATCH and value is not None}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchError(f"The directive $patch: {directive!r} does not exist.")
    result = dict(doc)
    if (retained := patch.get(RETAIN)) is not None:
        if not isinstance(retained, list):
            raise PatchError("The directive $retainKeys is a list of keys.")
        result = {key: value for key, value in result.items() if key in retained}
    for key, values in patch.items():
        if key.startswith(DELETE_PRIMITIVES):
            field = key.removeprefix(DELETE_PRIMITIVES)
            result[field] = [item for item in result.get(field) or [] if item not in values]
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            result.pop(key, None)
        else:
            order = patch.get(ORDER + key)
            result[key] = _merge_value(result.get(key), value, fields.get(key, ""), order)
    for key, order in patch.items():
        # An order alone, with no change to the list itself, still sorts it.
        field = key.removeprefix(ORDER)
        if key.startswith(ORDER) and field not in patch and isinstance(result.get(field), list):
            merge_key = _merge_key(fields.get(field, ""))
            if merge_key is not None:
                result[field] = _in_order(result[field], result[field], order, merge_key)
    return result


def _merge_key(spec: str) -> str | None:
    """The key a list is merged by; empty for a set of plain values; None for a list that is replaced."""
    return spec[1 : spec.index("]")] if spec.startswith("[") else None


def _merge_value(old: Any, new: Any, spec: str, order: Any) -> Any:
    if isinstance(new, dict):
        nested = fields_of(spec)
        return _merge_map(old if isinstance(old, dict) else {}, new, nested)
    merge_key = _merge_key(spec)
    if not isinstance(new, list) or merge_key is None:
        return _plain(new)
    before = old if isinstance(old, list) else []
    if merge_key == "":
        merged = before + [item for item in _plain(new) if item not in before]
    else:
        merged = _merge_list(before, new, merge_key, fields_of(spec[spec.index("]") + 1 :]))
    return merged if order is None else _in_order(before, merged, order, merge_key)


def _merge_list(old: list[Any], patch: list[Any], merge_key: str, fields: Fields) -> list[Any]:
    if any(not isinstance(item, dict) for item in patch):
        raise PatchError(f"The items of a list that merges by {merge_key!r} are objects.")
    if any(item.get(PATCH) == "replace" for item in patch):
        return [_plain(item) for item in patch if item.get(PATCH) != "replace"]
    result = list(old)
    for item in patch:
        if merge_key not in item:
            raise PatchError(f"An item of the patch has no {merge_key!r}, by which its list merges.")
        directive = item.get(PATCH)
        matches = [at for at, known in enumerate(result) if known.get(merge_key) == item[merge_key]]
        if directive == "delete":
            result = [known for known in result if known.get(merge_key) != item[merge_key]]
        elif directive not in (None, "merge"):
            raise PatchError(f"The directive $patch: {directive!r} does not exist.")
        elif matches:
            result[matches[0]] = _merge_map(result[matches[0]], item, fields)
        else:
            result.append(_plain(item))
    return result


def _in_order(before: list[Any], merged: list[Any], order: Any, merge_key: str) -> list[Any]:
    """`merged` with the items that `order` names in that order, and the others where the server had them."""
    if not isinstance(order, list):
        raise PatchError("The directive $setElementOrder is a list.")

    def identity(item: Any) -> Any:
        return item.get(merge_key) if merge_key and isinstance(item, dict) else item

    place = {_hashable(identity(item)): at for at, item in enumerate(order)}
    server = {_hashable(identity(item)): at for at, item in enumerate(before)}
    named = [item for item in merged if _hashable(identity(item)) in place]
    named.sort(key=lambda item: place[_hashable(identity(item))])
    others = [item for item in merged if _hashable(identity(item)) not in place]
    result: list[Any] = []
    while named and others:
        at = server.get(_hashable(identity(named[0])))
        other_first = at is not None and server.get(_hashable(identity(others[0])), -1) < at
        result.append(others.pop(0) if other_first else named.pop(0))
    return result + named + others


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _plain(value: Any) -> Any:
    """A value that comes new: without directives, and without what is only there to remove something."""
    if isinstance(value, dict):
        return {
            key: _plain(item) for key, item in value.items() if not key.startswith("$") and item is not None
        }
    if isinstance(value, list):
        return [
            _plain(item) for item in value if not (isinstance(item, dict) and item.get(PATCH) == "delete")
        ]
    return copied(value)
