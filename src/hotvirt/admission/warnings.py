"""The sentences that kubectl prints after a write: what has no effect, what is live, what waits."""

from __future__ import annotations

from typing import Any, Final

from hotvirt.api import codec
from hotvirt.api.crd import unacted_fields
from hotvirt.api.kubevirt import VirtualMachine
from hotvirt.plan.live import TEMPLATE, UpdatePlan
from hotvirt.plan.memory import guest_memory
from hotvirt.plan.resources import limit_is_raised

# An API server cuts a warning here.
MOST_CHARACTERS: Final = 256
_PREFIX: Final = f"{TEMPLATE}."


def unacted_warning(kind: str, obj: dict[str, Any]) -> list[str]:
    """One warning that names every field which is kept without an effect, if there is one."""
    fields = unacted_fields(kind, obj)
    if not fields:
        return []
    return [_listed("Hotvirt keeps these fields but does not act on them: ", _shortened(fields))]


def _shortened(fields: list[str]) -> list[str]:
    """Without the part that all fields of a template share, where that leaves no doubt."""
    if all(field.startswith(_PREFIX) for field in fields):
        return [field.removeprefix(_PREFIX) for field in fields]
    return fields


def _listed(text: str, items: list[str]) -> str:
    for count in range(len(items), 0, -1):
        left = len(items) - count
        line = text + ", ".join(items[:count]) + (f" and {left} more" if left else "")
        if len(line.encode()) <= MOST_CHARACTERS:
            return line
    return f"{text}{len(items)} fields"


def size_warnings(vm: dict[str, Any]) -> list[str]:
    """What the Pod gets although the user wrote something else."""
    spec = codec.convert(vm, VirtualMachine).spec.template.spec
    if not limit_is_raised(spec):
        return []
    given = spec.domain.resources
    limit = given.limits["memory"] if given else None
    return [
        f"domain.resources.limits.memory {limit} is less than the guest's memory: "
        f"the Pod gets {guest_memory(spec)} and the overhead"
    ]


def plan_warnings(plan: UpdatePlan, every_step: bool = False) -> list[str]:
    """One warning for each change of a running machine, and the order where several sizes change.

    `every_step`: the order in any case, for who only asks what would happen.
    """
    lines = [change.message for change in plan.live]
    several = len({step.resource for step in plan.steps if step.where == "guest"}) > 1
    if several or (every_step and plan.steps):
        lines.append(f"in this order: {', '.join(str(step) for step in plan.steps)}")
    lines += [cause.message for cause in plan.restart]
    return [_cut(line) for line in lines]


def _cut(line: str) -> str:
    encoded = line.encode()
    if len(encoded) <= MOST_CHARACTERS:
        return line
    return encoded[: MOST_CHARACTERS - 3].decode(errors="ignore") + "..."
