"""A change of a running guest's size, seen as a whole: pure.

Four sizes, never mixed: what is wanted (the spec), what the guest has (the status figures), what the
hypervisor has or may have been told to have (claimed: raised with the grant, lowered by the node agent), and
what the Pod covers for good (granted, by the VMI controller). Claimed never exceeds granted, and granted
never exceeds what the Pod has in force: so the guest always fits its Pod, whoever dies at whatever line.
`docs/architecture.md` has the story.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

import msgspec

from hotvirt.api.conditions import find
from hotvirt.api.kubevirt import CPU, GuestSize, Memory, Obstacle, VirtualMachineInstance, VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.instance import Problem
from hotvirt.plan.memory import ALIGNMENT, guest_memory, overhead
from hotvirt.plan.podresize import Size, Step, Verdict, size_of, target_size
from hotvirt.plan.resources import pod_resources, with_limits_of_others
from hotvirt.plan.stages import WELL
from hotvirt.plan.topology import topology

CPU_RESOURCE: Final = "cpu"
MEMORY_RESOURCE: Final = "memory"
HOT_VCPU_CHANGE: Final = "HotVCPUChange"
HOT_MEMORY_CHANGE: Final = "HotMemoryChange"
HOT_RESOURCES_CHANGE: Final = "HotResourcesChange"
CONDITIONS: Final = (HOT_VCPU_CHANGE, HOT_MEMORY_CHANGE, HOT_RESOURCES_CHANGE)
_CONDITION_OF: Final = {CPU_RESOURCE: HOT_VCPU_CHANGE, MEMORY_RESOURCE: HOT_MEMORY_CHANGE}


@dataclass(frozen=True, slots=True)
class Guest:
    """A size of the guest."""

    vcpus: int
    memory: int

    def join(self, other: Guest) -> Guest:
        """The larger of both in each."""
        return Guest(max(self.vcpus, other.vcpus), max(self.memory, other.memory))

    def exceeds(self, other: Guest) -> bool:
        """Whether it is larger in anything."""
        return self.join(other) != other

    def of(self, resource: str) -> int:
        return self.vcpus if resource == CPU_RESOURCE else self.memory

    def status(self) -> GuestSize:
        return GuestSize(vcpus=self.vcpus, memory=Quantity.bytes(self.memory))


@dataclass(frozen=True, slots=True)
class View:
    wanted: Guest
    current: Guest
    claimed: Guest
    granted: Guest
    settled: bool
    """Whether this generation of the spec was reached before: then the Pod's size is nobody's question."""
    stuck: frozenset[str] = frozenset()
    """What the guest does not go along with."""
    spec: Guest | None = None
    """What the spec says, where that is not wanted now: the gate is off."""

    @property
    def top(self) -> Guest:
        """What the Pod has to cover now: growth outside-in, shrinking inside-out.

        A guest that is giving back does so in many small steps: the Pod follows when it is done, or stuck.
        """

        def of(resource: str) -> int:
            wanted, claimed = self.wanted.of(resource), self.claimed.of(resource)
            if claimed > wanted and resource not in self.stuck:
                return max(claimed, self.granted.of(resource))
            return max(wanted, claimed)

        return Guest(of(CPU_RESOURCE), of(MEMORY_RESOURCE))

    def at_rest(self, resource: str) -> bool:
        wanted = self.wanted.of(resource)
        sizes = [self.current, self.claimed, self.granted]
        if self.spec is not None:
            sizes.append(self.spec)
        return all(size.of(resource) == wanted for size in sizes)


def view(vmi: VirtualMachineInstance, gate: bool) -> View | None:
    """None until the node agent has said what runs. With the gate off nothing is wanted but what there is."""
    status = vmi.status
    cpu, memory = status.current_cpu_topology, status.memory
    if cpu is None:
        return None
    has = memory.guest_current if memory else None
    current = Guest(
        max(1, cpu.sockets) * max(1, cpu.cores) * max(1, cpu.threads),
        (has if has is not None else guest_memory(vmi.spec)).value,
    )
    claimed = _guest(status.hotvirt.claimed, current)
    granted = _guest(status.hotvirt.granted, claimed)
    asked = wanted_guest(vmi.spec)
    wanted = asked if gate else claimed
    settled = status.hotvirt.settled_generation == vmi.metadata.generation
    stuck = frozenset(obstacle.resource for obstacle in status.hotvirt.obstacles)
    return View(
        wanted,
        _snapped(current, wanted),
        _snapped(claimed, wanted),
        granted,
        settled,
        stuck,
        None if gate else _snapped(asked, wanted),
    )


def _snapped(size: Guest, wanted: Guest) -> Guest:
    """Less than the smallest step of memory is no difference: a size at boot need not be a multiple of it."""
    if abs(size.memory - wanted.memory) < ALIGNMENT:
        return Guest(size.vcpus, wanted.memory)
    return size


def wanted_guest(spec: VMISpec) -> Guest:
    return Guest(topology(spec.domain).vcpus, guest_memory(spec).value)


def _guest(size: GuestSize | None, otherwise: Guest) -> Guest:
    if size is None:
        return otherwise
    return Guest(
        size.vcpus or otherwise.vcpus, size.memory.value if size.memory is not None else otherwise.memory
    )


def resized(spec: VMISpec, guest: Guest) -> VMISpec:
    """The spec as it would be with a guest of this size."""
    domain = spec.domain
    shape = topology(domain)
    if shape.vcpus != guest.vcpus:
        sockets = -(-guest.vcpus // (shape.cores * shape.threads))
        cpu = msgspec.structs.replace(
            domain.cpu or CPU(), sockets=sockets, cores=shape.cores, threads=shape.threads
        )
        domain = msgspec.structs.replace(domain, cpu=cpu)
    had = guest_memory(spec)
    if had.value != guest.memory:
        size = Quantity.bytes(guest.memory).in_family_of(had)
        domain = msgspec.structs.replace(
            domain, memory=msgspec.structs.replace(domain.memory or Memory(), guest=size)
        )
    return msgspec.structs.replace(spec, domain=domain)


def pod_target(spec: VMISpec, config: ClusterConfig, seen: View, asked: Size) -> Size:
    """The size of the Pod for now, in the shape the Pod was made with."""
    then = resized(spec, seen.top)
    needs = pod_resources(then, config, asked.own_limits)
    wanted = size_of(with_limits_of_others(needs, asked.limits, then, config))
    return target_size(wanted, _floor(spec, config, seen.claimed), asked)


def _floor(spec: VMISpec, config: ClusterConfig, claimed: Guest) -> Size:
    """What the memory of the Pod may never go below while the hypervisor has this much.

    Huge pages are counted apart and cannot change in place.
    """
    memory, given = spec.domain.memory, spec.domain.resources
    if memory and memory.hugepages:
        return Size()
    need = Quantity.bytes(claimed.memory) + overhead(resized(spec, claimed), config)
    request = given.requests.get(MEMORY_RESOURCE) if given else None
    overcommits = (
        config.memory_overcommit != 100
        or bool(given and given.overcommit_guest_overhead)
        or (request is not None and request < guest_memory(spec))
    )
    return Size({} if overcommits else {MEMORY_RESOURCE: need}, {MEMORY_RESOURCE: need})


def grant(seen: View, target: Size, asked: Size, actual: Size | None) -> Guest:
    """The size to grant now: more when the Pod has its size in force, less as soon as nobody needs more."""
    top = seen.top

    def granted(resource: str) -> int:
        if top.of(resource) <= seen.granted.of(resource):
            return top.of(resource)
        covered = _covers(asked, target, resource) and _covers(actual, target, resource)
        return top.of(resource) if covered else seen.granted.of(resource)

    return Guest(granted(CPU_RESOURCE), granted(MEMORY_RESOURCE))


def claimed_with(claimed: GuestSize | None, before: Guest, granted: Guest) -> GuestSize | None:
    """What counts as claimed from the write on that grants more: the node agent may take that at once.

    It alone takes that back, when it has seen the machine at less and does not mean to bring it there.
    """
    if claimed is None or not granted.exceeds(before):
        return claimed
    stands = _guest(claimed, granted)

    def of(resource: str) -> int:
        more = granted.of(resource) > before.of(resource)
        return max(stands.of(resource), granted.of(resource)) if more else stands.of(resource)

    return Guest(of(CPU_RESOURCE), of(MEMORY_RESOURCE)).status()


def _covers(size: Size | None, needed: Size, resource: str) -> bool:
    if size is None:
        return False
    pairs = ((size.requests, needed.requests), (size.limits, needed.limits))
    return all(
        resource not in need or (resource in have and have[resource] >= need[resource])
        for have, need in pairs
    )


def pending(
    vmi: VirtualMachineInstance, seen: View, pod_differs: Set[str], unseen: bool = False
) -> tuple[str, ...]:
    """The conditions that should stand now.

    `pod_differs` names the resources in which the Pod is not what it should be; `unseen` says that its node
    has not looked at the size that is asked for now, so that nothing can be over.
    """

    def stands(kind: str) -> bool:
        return find(vmi.status.conditions, kind) is not None

    changes = [
        kind
        for resource, kind in _CONDITION_OF.items()
        if not seen.at_rest(resource)
        # Guest and hypervisor are there, the Pod is not: the change is over when that is too.
        or ((unseen or resource in pod_differs) and stands(kind))
    ]
    if not changes and ((pod_differs and not seen.settled) or (unseen and stands(HOT_RESOURCES_CHANGE))):
        return (HOT_RESOURCES_CHANGE,)
    return tuple(changes)


def goes_well(vmi: VirtualMachineInstance) -> bool:
    """Whether no change of this VMI is said to be held up."""
    return all(each.reason in WELL for each in vmi.status.conditions if each.type in CONDITIONS)


def explain(
    kind: str,
    seen: View,
    verdict: Verdict,
    obstacles: tuple[Obstacle, ...],
    gate: bool,
    no_agent: Problem | None = None,
) -> tuple[str, str]:
    """Reason and message of a condition that stands. `no_agent`: nobody is there to change the guest."""
    if not gate:
        return "FeatureGateOff", "the feature gate InPlaceHotplug is off; nothing is changed until it is on."
    if kind == HOT_RESOURCES_CHANGE:
        return _stage(verdict)
    resource = CPU_RESOURCE if kind == HOT_VCPU_CHANGE else MEMORY_RESOURCE
    wanted = seen.wanted.of(resource)
    if seen.granted.of(resource) < wanted:
        return _stage(verdict)
    if seen.current.of(resource) != wanted or seen.claimed.of(resource) != wanted:
        if no_agent is not None:
            return no_agent.reason, no_agent.message
        for obstacle in obstacles:
            if obstacle.resource == resource:
                return obstacle.reason, obstacle.message
        action = "taken" if seen.claimed.of(resource) <= wanted else "given back"
        return "GuestPending", f"the guest has not yet {action} all of it."
    return _stage(verdict)


def _stage(verdict: Verdict) -> tuple[str, str]:
    if verdict.step is Step.DONE:
        return "PodResize", "the Pod has its new size."
    return verdict.reason, verdict.message[:1].lower() + verdict.message[1:]
