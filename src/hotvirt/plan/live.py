"""Which part of an edit is done now and which waits for a restart: the one planner.

The webhook, the VM controller and the CLI all ask `plan_update`. The live part is never held back by the part
that waits, every cause is named, and a cause is gone when the edit is taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from hotvirt.api import codec, names
from hotvirt.api.conditions import is_true
from hotvirt.api.domain import CPU, DomainResources, Memory
from hotvirt.api.kubevirt import VirtualMachine, VirtualMachineInstance, VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.causes import Cause
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.differences import Difference, acted_on, differences
from hotvirt.plan.headroom import Surroundings, consequences
from hotvirt.plan.memory import guest_memory
from hotvirt.plan.obstacles import cpu_obstacle, memory_obstacle, rollout_obstacle
from hotvirt.plan.resources import Resources, pod_resources, qos_class, with_limits_of_others
from hotvirt.plan.steps import Step, steps
from hotvirt.plan.topology import topology

TEMPLATE: Final = "spec.template.spec"
SOCKETS: Final = "domain.cpu.sockets"
GUEST: Final = "domain.memory.guest"
MIN_GUEST: Final = f"metadata.annotations[{names.ANNOTATION_MIN_GUEST}]"
# Copied to the VMI at once; they say where a machine may be placed, so they count when it is placed next.
PLACEMENT: Final = ("nodeSelector", "affinity", "tolerations")
AMOUNTS: Final = tuple((part, name) for part in ("requests", "limits") for name in ("cpu", "memory"))
# Planned by themselves below, each against what runs instead of what was started.
_PLANNED: Final = frozenset(
    {SOCKETS, "domain.cpu.cores", "domain.cpu.threads", GUEST}
    | {f"domain.resources.{part}.{name}" for part, name in AMOUNTS}
)
_ENDED: Final = frozenset({"Succeeded", "Failed"})

NEEDS_RESTART: Final = "NeedsRestart"
FIXED: Final = "it is fixed at start"
Amounts = dict[tuple[str, str], Quantity | None]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference that is done live."""

    field: str
    old: Any
    new: Any
    message: str


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """The plan of an edit: a merge patch for the VMI, what is done live, in which order, and what waits."""

    vmi_patch: dict[str, Any] = field(default_factory=dict)
    live: list[Change] = field(default_factory=list)
    restart: list[Cause] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def restart_message(self) -> str:
        """Every cause in one text, for the condition RestartRequired."""
        return "; ".join(cause.message for cause in self.restart)


def plan_update(
    vm: VirtualMachine | dict[str, Any],
    vmi: VirtualMachineInstance | dict[str, Any],
    config: ClusterConfig,
    baseline: VMISpec | dict[str, Any] | None = None,
    surroundings: Surroundings | None = None,
) -> UpdatePlan:
    """What to do about the differences between a VM's template and its VMI.

    `baseline` is the template that the VMI was started from (its start revision): the exact way to see
    what was changed. Without it the VMI's own spec is taken, and what the template leaves open counts as
    unchanged. `surroundings` let the messages say whether there is room.
    """
    typed_vmi = codec.convert(vmi, VirtualMachineInstance)
    if typed_vmi.metadata.deleting or typed_vmi.status.phase in _ENDED:
        return UpdatePlan()
    typed_vm = codec.convert(vm, VirtualMachine)
    started = None if baseline is None else codec.convert(baseline, VMISpec)
    return _Planner(typed_vm, typed_vmi, config, started, surroundings or Surroundings()).plan()


@dataclass(slots=True)
class _Live:
    """A change that is done live, before its consequences are known."""

    difference: Difference
    resource: str = ""
    notes: list[str] = field(default_factory=list)

    def told(self) -> Change:
        how = ["live"] if self.resource else []
        message = f"{self.difference}: {', '.join([*how, *self.notes])}"
        path = f"{TEMPLATE}.{self.difference.path}"
        return Change(path, self.difference.old, self.difference.new, message)


class _Planner:
    """One edit; each method plans one part of it."""

    def __init__(
        self,
        vm: VirtualMachine,
        vmi: VirtualMachineInstance,
        config: ClusterConfig,
        baseline: VMISpec | None,
        around: Surroundings,
    ) -> None:
        self.template = vm.spec.template
        self.wanted = vm.spec.template.spec
        self.vmi = vmi
        self.config = config
        self.baseline = baseline
        self.around = around
        self.patch: dict[str, Any] = {}
        self.live: list[_Live] = []
        self.restart: list[Cause] = []
        self.goal = vmi.spec
        """The VMI's spec with the live sizes that were planned so far."""

    def plan(self) -> UpdatePlan:
        self.cores_and_threads()
        self.memory()
        self.resources()
        self.sockets()
        self.min_guest()
        self.placement()
        self.everything_else()
        self.live.sort(key=lambda each: each.difference.path != SOCKETS)
        if self.goal is self.vmi.spec:
            return UpdatePlan(self.patch, [each.told() for each in self.live], self.restart)
        has = self.around.pod or pod_resources(self.vmi.spec, self.config)
        needs = pod_resources(self.goal, self.config, self.around.own_limits)
        needs = with_limits_of_others(needs, has["limits"], self.goal, self.config)
        in_order = steps(self.vmi.spec, self.goal, has, needs)
        return UpdatePlan(self.patch, self._with_consequences(has, needs, in_order), self.restart, in_order)

    def cores_and_threads(self) -> None:
        runs, wanted = topology(self.vmi.spec.domain), topology(self.wanted.domain)
        if runs.cores != wanted.cores:
            self._wait(Difference("domain.cpu.cores", runs.cores, wanted.cores), FIXED)
        if runs.threads != wanted.threads:
            self._wait(Difference("domain.cpu.threads", runs.threads, wanted.threads), FIXED)

    def sockets(self) -> None:
        """After the resources, which may decide about the quality of service too."""
        runs, wanted = topology(self.vmi.spec.domain).sockets, topology(self.wanted.domain).sockets
        if runs == wanted:
            return
        difference = Difference(SOCKETS, runs, wanted)
        goal = _with_sockets(self.goal, wanted)
        obstacle = cpu_obstacle(self.vmi, wanted, self.config) or self._qos_obstacle(goal)
        if obstacle:
            self._wait(difference, obstacle)
            return
        self.goal = goal
        notes = self._guest_notes(takes_vcpus=wanted < runs)
        self._now(difference, {"domain": {"cpu": {"sockets": wanted}}}, "cpu", notes)

    def memory(self) -> None:
        runs, wanted = guest_memory(self.vmi.spec), guest_memory(self.wanted)
        if not wanted or runs == wanted:
            return
        difference = Difference(GUEST, str(runs), str(wanted))
        obstacle = memory_obstacle(self.vmi, wanted, self.config, self.template, self.baseline)
        if obstacle:
            self._wait(difference, obstacle)
            return
        memory = msgspec.structs.replace(self.goal.domain.memory or Memory(), guest=wanted)
        self.goal = _with_domain(self.goal, memory=memory)
        part = {"domain": {"memory": {"guest": str(wanted)}}}
        self._now(difference, part, "memory", self._guest_notes())

    def min_guest(self) -> None:
        old = self.vmi.metadata.annotations.get(names.ANNOTATION_MIN_GUEST)
        new = self.template.metadata.annotations.get(names.ANNOTATION_MIN_GUEST)
        if old != new:
            cause = f"{Difference(MIN_GUEST, old, new)}: needs a restart, {FIXED}"
            self.restart.append(Cause(f"spec.template.{MIN_GUEST}", NEEDS_RESTART, cause))

    def resources(self) -> None:
        """What the user asks for the Pod. Amounts of memory go with the guest's, edited or not."""
        has = {key: _given(self.vmi.spec, *key) for key in AMOUNTS}
        along = self._fitting({key: self._along_with_guest(key[1], amount) for key, amount in has.items()})
        wanted = self._fitting({key: self._wanted_amount(*key) for key in AMOUNTS})
        edited = [key for key in AMOUNTS if wanted[key] != has[key] and self._is_edited(*key)]
        obstacle = rollout_obstacle(self.config) or self._obstacle_to(wanted)
        goal = wanted
        if obstacle:
            # What was edited waits, and yet no amount may lag behind the guest.
            goal = self._fitting(wanted | {key: along[key] for key in edited})
            if self._obstacle_to(goal):
                goal = along
        changed = [key for key in AMOUNTS if goal[key] != has[key]]
        if changed:
            self.goal = self._with_amounts(goal)
        for part, name in edited:
            old, new = _text(has[part, name]), _text(wanted[part, name])
            difference = Difference(f"domain.resources.{part}.{name}", old, new)
            if obstacle and goal[part, name] != wanted[part, name]:
                self._wait(difference, obstacle)
            else:
                self.live.append(_Live(difference, name))
        for part, name in changed:
            value = {name: _text(goal[part, name])}
            _merge(self.patch.setdefault("spec", {}), {"domain": {"resources": {part: value}}})

    def placement(self) -> None:
        wanted, runs = acted_on(self.wanted), acted_on(self.vmi.spec)
        for name in PLACEMENT:
            old, new = runs.get(name), wanted.get(name)
            if (old or None) == (new or None):
                continue
            difference = Difference(name, old, new)
            if self.config.stages:
                self._wait(difference, rollout_obstacle(self.config))
            else:
                # In a merge patch a key that is left out stays: keys that are gone are set to null.
                value = _replacing(old, new)
                self._now(difference, {name: value}, notes=["counts when the machine is placed next"])

    def everything_else(self) -> None:
        wanted = acted_on(self.wanted)
        if self.baseline is not None:
            found = differences(acted_on(self.baseline), wanted)
        else:
            found = (each for each in differences(acted_on(self.vmi.spec), wanted) if _is_a_wish(each))
        for difference in found:
            top = difference.path.partition(".")[0].partition("[")[0]
            if difference.path not in _PLANNED and top not in PLACEMENT:
                self._wait(difference)

    def _wanted_amount(self, part: str, name: str) -> Quantity | None:
        """As written; plus what the guest grew since its start, where the amount itself was left alone."""
        written = _given(self.wanted, part, name)
        if name != "memory" or written is None or not _has_own_size(self.wanted):
            return written
        if self._differs_from_start(part, name):
            return written
        return _moved(written, guest_memory(self.goal), self._guest_at_start())

    def _differs_from_start(self, part: str, name: str) -> bool:
        at_start = None if self.baseline is None else _given(self.baseline, part, name)
        return self.baseline is not None and at_start != _given(self.wanted, part, name)

    def _is_edited(self, part: str, name: str) -> bool:
        """Whether a new amount is a wish of its own, and does not only follow from the guest's size."""
        follows = name == "memory" and guest_memory(self.goal) != guest_memory(self.vmi.spec)
        return not follows or self._differs_from_start(part, name)

    def _along_with_guest(self, name: str, amount: Quantity | None) -> Quantity | None:
        if name != "memory" or amount is None:
            return amount
        return _moved(amount, guest_memory(self.goal), guest_memory(self.vmi.spec))

    def _fitting(self, amounts: Amounts) -> Amounts:
        """With a memory limit that covers the guest, and a request that is not above it."""
        request, limit = amounts["requests", "memory"], amounts["limits", "memory"]
        if limit is None:
            return amounts
        covering = max(limit, guest_memory(self.goal).in_family_of(limit))
        if request is not None:
            request = covering if request == limit else min(request, covering)
        return amounts | {("requests", "memory"): request, ("limits", "memory"): covering}

    def _guest_at_start(self) -> Quantity:
        if self.baseline is not None and guest_memory(self.baseline):
            return guest_memory(self.baseline)
        memory = self.vmi.status.memory
        return (memory.guest_at_boot if memory else None) or guest_memory(self.vmi.spec)

    def _obstacle_to(self, wanted: Amounts) -> str | None:
        for (part, name), amount in wanted.items():
            if part == "limits" and (amount is None) != (_given(self.vmi.spec, part, name) is None):
                return "a limit can neither appear nor go while the Pod runs"
        goal = self._with_amounts(wanted)
        # The vCPUs, planned after this, may decide about the class too; they wait where they do not fit.
        if self._qos_obstacle(_with_sockets(goal, self._live_sockets())) is None:
            return None
        return self._qos_obstacle(goal)

    def _live_sockets(self) -> int:
        runs, wanted = topology(self.vmi.spec.domain).sockets, topology(self.wanted.domain).sockets
        return runs if cpu_obstacle(self.vmi, wanted, self.config) else wanted

    def _qos_obstacle(self, goal: VMISpec) -> str | None:
        before = qos_class(pod_resources(self.vmi.spec, self.config))
        after = qos_class(pod_resources(goal, self.config))
        if before == after:
            return None
        return f"the Pod's quality of service would change from {before} to {after}"

    def _with_amounts(self, wanted: Amounts) -> VMISpec:
        given = self.goal.domain.resources or DomainResources()
        requests, limits = dict(given.requests), dict(given.limits)
        for (part, name), amount in wanted.items():
            amounts = requests if part == "requests" else limits
            if amount is None:
                amounts.pop(name, None)
            else:
                amounts[name] = amount
        return _with_domain(
            self.goal, resources=msgspec.structs.replace(given, requests=requests, limits=limits)
        )

    def _guest_notes(self, takes_vcpus: bool = False) -> list[str]:
        conditions = self.vmi.status.conditions
        if is_true(conditions, "Paused"):
            return ["done when the machine is unpaused"]
        if takes_vcpus and self.vmi.status.phase == "Running" and not is_true(conditions, "AgentConnected"):
            return ["waits for the guest agent, which is not connected"]
        return []

    def _wait(self, difference: Difference, why: str | None = None) -> None:
        message = f"{difference}: needs a restart"
        self.restart.append(
            Cause(f"{TEMPLATE}.{difference.path}", NEEDS_RESTART, f"{message}, {why}" if why else message)
        )

    def _now(
        self,
        difference: Difference,
        part: dict[str, Any],
        resource: str = "",
        notes: list[str] | None = None,
    ) -> None:
        _merge(self.patch.setdefault("spec", {}), part)
        self.live.append(_Live(difference, resource, notes or []))

    def _with_consequences(self, has: Resources, needs: Resources, in_order: list[Step]) -> list[Change]:
        """Each live change; the last one of a resource tells what all of them mean for it."""
        shrinks = {step.resource for step in in_order if step.where == "guest" and not step.grows}
        last = {each.resource: each for each in self.live if each.resource}
        for resource, each in last.items():
            each.notes[:0] = consequences(resource, has, needs, self.around, after_guest=resource in shrinks)
        return [each.told() for each in self.live]


def _given(spec: VMISpec, part: str, name: str) -> Quantity | None:
    resources = spec.domain.resources
    if resources is None:
        return None
    return (resources.requests if part == "requests" else resources.limits).get(name)


def _has_own_size(spec: VMISpec) -> bool:
    """Whether the guest's size is given by itself, not by what is asked for the Pod."""
    return bool(spec.domain.memory and spec.domain.memory.guest)


def _moved(amount: Quantity, guest: Quantity, was: Quantity) -> Quantity:
    """An amount of the Pod's memory when the guest's changes: by as much.

    When a guest shrinks, an overcommitted amount shrinks in proportion: it must not be driven to nothing.
    """
    if guest < was and amount < was:
        return Quantity.bytes(amount.value * guest.value // was.value).in_family_of(amount)
    return (amount + (guest - was)).in_family_of(amount)


def _text(amount: Quantity | None) -> str | None:
    return None if amount is None else str(amount)


def _with_domain(spec: VMISpec, **parts: Any) -> VMISpec:
    return msgspec.structs.replace(spec, domain=msgspec.structs.replace(spec.domain, **parts))


def _with_sockets(spec: VMISpec, sockets: int) -> VMISpec:
    return _with_domain(spec, cpu=msgspec.structs.replace(spec.domain.cpu or CPU(), sockets=sockets))


def _is_a_wish(difference: Difference) -> bool:
    """Whether a template says this itself; a VMI has much that was only filled in, but never volumes."""
    return difference.new is not None or difference.path.startswith("volumes[")


def _replacing(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        gone = {key: None for key in old if key not in new}
        return {key: _replacing(old.get(key), value) for key, value in new.items()} | gone
    return new


def _merge(target: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = value
