"""The order in which a change of size is carried out: grow outside-in, shrink inside-out.

Each resource goes its own way, both at once; in the list growth comes first. Followed step by step, the
Pod covers the guest at every moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from hotvirt.api.kubevirt import VMISpec
from hotvirt.plan.headroom import shown
from hotvirt.plan.memory import guest_memory
from hotvirt.plan.resources import Resources
from hotvirt.plan.topology import topology

Where = Literal["Pod", "guest"]
_SIZES: Final = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class Step:
    """One step: who gets another size, of what, and whether it is more."""

    where: Where
    resource: str
    grows: bool
    old: str
    new: str

    def __str__(self) -> str:
        what = "vCPUs" if (self.where, self.resource) == ("guest", "cpu") else self.resource
        return f"{self.where} {what} {self.old}→{self.new}"


def steps(spec: VMISpec, wanted: VMISpec, has: Resources, needs: Resources) -> list[Step]:
    """From the machine as its VMI describes it to the wanted one; `has` and `needs` are the Pod's sizes."""
    grow: list[Step] = []
    shrink: list[Step] = []
    for resource in _SIZES:
        pod = _pod_step(resource, has, needs)
        guest = _guest_step(resource, spec, wanted)
        first, then = (pod, guest) if _grows(pod, guest) else (guest, pod)
        (grow if _grows(pod, guest) else shrink).extend(step for step in (first, then) if step is not None)
    return grow + shrink


def _grows(pod: Step | None, guest: Step | None) -> bool:
    """A guest decides for its Pod: one that grows needs its Pod first, whatever the Pod's own way is."""
    deciding = guest or pod
    return deciding is not None and deciding.grows


def _pod_step(resource: str, has: Resources, needs: Resources) -> Step | None:
    for part in ("requests", "limits"):
        old, new = has[part].get(resource), needs[part].get(resource)
        if old is not None and new is not None and old != new:
            return Step("Pod", resource, new > old, shown(resource, old), shown(resource, new))
    return None


def _guest_step(resource: str, spec: VMISpec, wanted: VMISpec) -> Step | None:
    if resource == "cpu":
        runs, goal = topology(spec.domain).vcpus, topology(wanted.domain).vcpus
        return None if runs == goal else Step("guest", "cpu", goal > runs, str(runs), str(goal))
    had, has = guest_memory(spec), guest_memory(wanted)
    return None if had == has else Step("guest", "memory", has > had, str(had), str(has))
