"""JSON merge patches (RFC 7386): a null removes, an object merges, everything else replaces."""

from __future__ import annotations

from typing import Any

from .copy import copied


def apply_merge_patch(doc: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(doc) if isinstance(doc, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result


def merge_diff(old: Any, new: Any) -> dict[str, Any] | None:
    """The merge patch that turns `old` into `new`, or None when they are equal.

    A null in `new` where `old` has something else cannot be said by a merge patch: that field is removed.
    """
    patch: dict[str, Any] = {}
    old = old if isinstance(old, dict) else {}
    for key in old.keys() - new.keys():
        patch[key] = None
    for key, value in new.items():
        if key in old and _same(old[key], value):
            continue
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            nested = merge_diff(old[key], value)
            if nested is not None:
                patch[key] = nested
        elif value is not None or key in old:
            patch[key] = copied(value)
    return patch or None


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)
