"""What a change of size means for the Pod, its node and its quotas, in words.

`Surroundings` is plain data that the caller looked up; whatever of it is missing is left unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from hotvirt.api.quantity import Quantity
from hotvirt.plan.memory import MIB
from hotvirt.plan.resources import Resources

Quantities = Mapping[str, Quantity]
_NOTHING: Final = Quantity(0)
WAITS: Final = "waits until there is room"


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node: what it offers in all, and what no Pod has asked for yet."""

    name: str
    allocatable: Quantities = field(default_factory=dict)
    free: Quantities = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaRoom:
    """A ResourceQuota: what is left of each of its names (`requests.cpu`, `limits.memory`, ...)."""

    name: str
    left: Quantities = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the machine runs.

    `pod` has the resources that its Pod's container `compute` asks for now, `own_limits` names those of its
    limits that only a quota demanded.
    """

    node: NodeRoom | None = None
    quotas: tuple[QuotaRoom, ...] = ()
    pod: Resources | None = None
    own_limits: frozenset[str] = frozenset()


def consequences(
    resource: str, before: Resources, after: Resources, around: Surroundings, *, after_guest: bool
) -> list[str]:
    """What the change means for one resource (cpu or memory), most important first.

    `after_guest` says that the guest gives something back before the Pod does.
    """
    request, limit = _growth(resource, "requests", before, after), _growth(resource, "limits", before, after)
    said = []
    if request > _NOTHING:
        said.append(f"+{shown(resource, request)} {resource}")
        said += _on_the_node(resource, request, after, around.node)
    elif request < _NOTHING:
        when = " once the guest has let go" if after_guest else ""
        said.append(f"-{shown(resource, _NOTHING - request)} {resource}{when}")
    if limit > _NOTHING:
        said.append(f"+{shown(resource, limit)} {resource} limit")
    elif limit < _NOTHING and not request:
        said.append(f"-{shown(resource, _NOTHING - limit)} {resource} limit")
    said += _in_the_quotas(resource, request, limit, around)
    return said


def shown(resource: str, amount: Quantity) -> str:
    """Short for a person: whole Mi of memory, rounded up."""
    if resource == "memory" and amount.value % MIB:
        amount = Quantity.bytes(-(-amount.value // MIB) * MIB)
    return str(amount if resource == "cpu" else Quantity.bytes(amount.value))


def shown_room(resource: str, amount: Quantity) -> str:
    """The same for room that is left, rounded down; never below nothing."""
    if amount <= _NOTHING:
        return "nothing"
    return shown(resource, Quantity.bytes(amount.value // MIB * MIB) if resource == "memory" else amount)


def _growth(resource: str, part: str, before: Resources, after: Resources) -> Quantity:
    new = after[part].get(resource)
    return _NOTHING if new is None else new - before[part].get(resource, new)


def _on_the_node(resource: str, more: Quantity, after: Resources, node: NodeRoom | None) -> Iterator[str]:
    if node is None or resource not in node.free:
        return
    free, whole = node.free[resource], node.allocatable.get(resource)
    if more <= free:
        yield f"node has {shown_room(resource, free)} free"
    elif whole is not None and after["requests"][resource] > whole:
        yield f"node {node.name} can never hold it, it has {shown_room(resource, whole)} in all"
    else:
        yield f"node {node.name} lacks {shown(resource, more - max(free, _NOTHING))}: {WAITS}"


def _in_the_quotas(resource: str, request: Quantity, limit: Quantity, around: Surroundings) -> Iterator[str]:
    """Every quota that is too small; where none is, the one with the least left."""
    wanted = {f"requests.{resource}": request, resource: request, f"limits.{resource}": limit}
    tightest: tuple[Quantity, str] | None = None
    lacking = False
    for quota in around.quotas:
        for name, more in wanted.items():
            left = quota.left.get(name)
            if left is None or more <= _NOTHING:
                continue
            if more > left:
                lacking = True
                missing = shown(resource, more - max(left, _NOTHING))
                yield f"quota {quota.name} lacks {missing} of {name}: {WAITS}"
            elif tightest is None or left - more < tightest[0]:
                text = f"quota {quota.name} has {shown_room(resource, left)} of {name} left"
                tightest = (left - more, text)
    if tightest is not None and not lacking:
        yield tightest[1]
