"""What differs between two specs of a machine, field by field.

Lists of named things (disks, volumes, interfaces, networks) are compared by name, so that a new order is no
difference and a cause can say which disk it means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from hotvirt.api import codec
from hotvirt.api.kubevirt import VMISpec

# Objects that only group: to leave one out and to write it empty is the same.
_GROUPS: Final = frozenset(
    {"domain"}
    | {f"domain.{name}" for name in ("cpu", "devices", "firmware", "machine", "memory", "resources")}
    | {"domain.resources.requests", "domain.resources.limits"}
)
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not the same; None stands for "not set"."""

    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.path}{_shown(self.new)} added"
        if self.new is None:
            return f"{self.path}{_shown(self.old)} removed"
        if isinstance(self.new, dict | list):
            return f"{self.path} changed"
        return f"{self.path}{_shown(self.old)}→{_shown(self.new).strip()}"


def _shown(value: Any) -> str:
    """A space and the value, or nothing for what is too much to show."""
    if isinstance(value, dict | list):
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return " " + (text if len(text) <= 40 else text[:37] + "...")


def acted_on(spec: Any) -> dict[str, Any]:
    """The part of a spec that Hotvirt acts on, with quantities in their canonical form and without nulls."""
    plain: dict[str, Any] = codec.builtins(codec.convert(spec, VMISpec))
    return plain


def differences(old: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """Every field that differs, the deepest that can be named."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            here = f"{path}.{name}" if path else name
            before, after = old.get(name, _MISSING), new.get(name, _MISSING)
            if here in _GROUPS:
                before = {} if before is _MISSING else before
                after = {} if after is _MISSING else after
            yield from _compared(before, after, here)
    elif _is_named(old) and _is_named(new):
        before_by_name = {item["name"]: item for item in old}
        after_by_name = {item["name"]: item for item in new}
        for name in dict.fromkeys((*before_by_name, *after_by_name)):
            yield from _compared(
                before_by_name.get(name, _MISSING), after_by_name.get(name, _MISSING), f"{path}[{name}]"
            )
    elif old != new:
        yield Difference(path, old, new)


def _compared(before: Any, after: Any, path: str) -> Iterator[Difference]:
    if before is _MISSING and _is_named(after):
        before = []
    if after is _MISSING and _is_named(before):
        after = []
    if before is _MISSING or after is _MISSING:
        yield Difference(path, None if before is _MISSING else before, None if after is _MISSING else after)
    else:
        yield from differences(before, after, path)


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and item.get("name") for item in value)
