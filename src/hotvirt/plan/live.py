"""Which part of an edit is done now and which waits for a restart: the one planner.

The webhook, the VM controller and the CLI all ask `plan_update`. The live part is never held back by the part
that waits, every cause is named, and a cause is gone when the edit is taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from hotvirt.api import codec, names
from hotvirt.api.kubevirt import VirtualMachine, VirtualMachineInstance, VMISpec
from hotvirt.plan.causes import Cause
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.differences import Difference, acted_on, differences
from hotvirt.plan.memory import guest_memory
from hotvirt.plan.topology import Topology, topology

TEMPLATE: Final = "spec.template.spec"
SOCKETS: Final = "domain.cpu.sockets"
GUEST: Final = "domain.memory.guest"
# Copied to the VMI at once; they say where a machine may be placed, so they count when it is placed next.
PLACEMENT: Final = ("nodeSelector", "affinity", "tolerations")
# Planned by themselves below, each against what runs instead of what was started.
_PLANNED: Final = frozenset({SOCKETS, "domain.cpu.cores", "domain.cpu.threads", GUEST})
_ENDED: Final = frozenset({"Succeeded", "Failed"})

NEEDS_RESTART: Final = "NeedsRestart"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference that is done live."""

    field: str
    old: Any
    new: Any
    message: str


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """The plan of an edit: a merge patch for the VMI, what it does live, and what waits for a restart."""

    vmi_patch: dict[str, Any] = field(default_factory=dict)
    live: list[Change] = field(default_factory=list)
    restart: list[Cause] = field(default_factory=list)

    @property
    def restart_message(self) -> str:
        """Every cause in one text, for the condition RestartRequired."""
        return "; ".join(cause.message for cause in self.restart)


def plan_update(
    vm: VirtualMachine | dict[str, Any],
    vmi: VirtualMachineInstance | dict[str, Any],
    config: ClusterConfig,
    baseline: VMISpec | dict[str, Any] | None = None,
) -> UpdatePlan:
    """What to do about the differences between a VM's template and its VMI.

    `baseline` is the template that the VMI was started from (its start revision): the exact way to see
    what was changed. Without it the VMI's own spec is taken, and what the template leaves open counts as
    unchanged.
    """
    typed_vmi = codec.convert(vmi, VirtualMachineInstance)
    if typed_vmi.metadata.deleting or typed_vmi.status.phase in _ENDED:
        return UpdatePlan()
    wanted = codec.convert(vm, VirtualMachine).spec.template.spec
    plan = _Planner(wanted, typed_vmi, config)
    plan.sockets()
    plan.memory()
    plan.placement()
    plan.everything_else(baseline)
    return UpdatePlan(plan.patch, plan.live, plan.restart)


class _Planner:
    """One edit; each method plans one part of it."""

    def __init__(self, wanted: VMISpec, vmi: VirtualMachineInstance, config: ClusterConfig) -> None:
        self.wanted = wanted
        self.vmi = vmi
        self.config = config
        self.patch: dict[str, Any] = {}
        self.live: list[Change] = []
        self.restart: list[Cause] = []

    def sockets(self) -> None:
        cpu = self.wanted.domain.cpu
        if not (cpu and (cpu.sockets or cpu.cores or cpu.threads)):
            return
        runs, wanted = topology(self.vmi.spec.domain), topology(self.wanted.domain)
        if runs.cores != wanted.cores:
            self._wait(Difference("domain.cpu.cores", runs.cores, wanted.cores))
        if runs.threads != wanted.threads:
            self._wait(Difference("domain.cpu.threads", runs.threads, wanted.threads))
        if runs.sockets == wanted.sockets:
            return
        difference = Difference(SOCKETS, runs.sockets, wanted.sockets)
        obstacle = self._obstacle_to_sockets(runs, wanted)
        if obstacle:
            self._wait(difference, obstacle)
        else:
            self._now(difference, {"domain": {"cpu": {"sockets": wanted.sockets}}}, "live")

    def _obstacle_to_sockets(self, runs: Topology, wanted: Topology) -> str | None:
        vmi_cpu = self.vmi.spec.domain.cpu
        most = max(vmi_cpu.max_sockets if vmi_cpu else 0, runs.sockets)
        if self.config.stages:
            return "vmRolloutStrategy is Stage"
        if not self.config.gate(names.GATE_IN_PLACE_HOTPLUG):
            return f"the feature gate {names.GATE_IN_PLACE_HOTPLUG} is off"
        if self.vmi.spec.architecture == "arm64":
            return "arm64 machines cannot be given vCPUs while they run"
        if wanted.sockets < runs.sockets:
            return "vCPUs cannot be taken from a running machine yet"
        if wanted.sockets > most:
            return f"the running machine has room for {most} sockets (its maxSockets)"
        return None

    def memory(self) -> None:
        memory = self.wanted.domain.memory
        if not (memory and memory.guest):
            return
        runs, wanted = guest_memory(self.vmi.spec), memory.guest
        if runs != wanted:
            why = (
                "vmRolloutStrategy is Stage"
                if self.config.stages
                else "the memory of a running machine cannot be changed yet"
            )
            self._wait(Difference(GUEST, str(runs), str(wanted)), why)

    def placement(self) -> None:
        wanted, runs = acted_on(self.wanted), acted_on(self.vmi.spec)
        for name in PLACEMENT:
            old, new = runs.get(name), wanted.get(name)
            if (old or None) == (new or None):
                continue
            difference = Difference(name, old, new)
            if self.config.stages:
                self._wait(difference, "vmRolloutStrategy is Stage")
            else:
                # In a merge patch a key that is left out stays: keys that are gone are set to null.
                value = _replacing(old, new)
                self._now(difference, {name: value}, "counts when the machine is placed next")

    def everything_else(self, baseline: VMISpec | dict[str, Any] | None) -> None:
        wanted = acted_on(self.wanted)
        if baseline is not None:
            found = differences(acted_on(baseline), wanted)
        else:
            found = (each for each in differences(acted_on(self.vmi.spec), wanted) if _is_a_wish(each))
        for difference in found:
            top = difference.path.partition(".")[0].partition("[")[0]
            if difference.path not in _PLANNED and top not in PLACEMENT:
                self._wait(difference)

    def _wait(self, difference: Difference, why: str | None = None) -> None:
        message = f"{difference}: needs a restart"
        self.restart.append(
            Cause(f"{TEMPLATE}.{difference.path}", NEEDS_RESTART, f"{message}, {why}" if why else message)
        )

    def _now(self, difference: Difference, part: dict[str, Any], how: str) -> None:
        _merge(self.patch.setdefault("spec", {}), part)
        self.live.append(
            Change(f"{TEMPLATE}.{difference.path}", difference.old, difference.new, f"{difference}: {how}")
        )


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
