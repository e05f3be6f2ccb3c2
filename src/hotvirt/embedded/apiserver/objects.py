"""Objects as plain JSON values."""

from __future__ import annotations

from typing import Any

from hotvirt.kube.patch.copy import copied

Object = dict[str, Any]


def clone(obj: Object) -> Object:
    """A copy that shares nothing with the original."""
    made: Object = copied(obj)
    return made
