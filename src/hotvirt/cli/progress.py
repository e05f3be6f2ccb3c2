"""How far a resize is, judged from the VM and its VMI as a watch shows them: pure.

A part (vCPUs, memory) is done when the guest has it and no condition says that it is under way. It waits for
a restart when the VM's RestartRequired names its field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hotvirt.api.quantity import Quantity
from hotvirt.plan.stages import WELL

from .failures import DEFERRED, FAILED, INFEASIBLE, NO_QUOTA, RESTART_REQUIRED

Object = dict[str, Any]
Result = Literal["done", "restartRequired", "deferred", "infeasible", "quota", "failed"]
ENDS: Final[dict[str, tuple[Result, int]]] = {
    "PodResizeDeferred": ("deferred", DEFERRED),
    "NodeCapacity": ("infeasible", INFEASIBLE),
    "ResourceQuota": ("quota", NO_QUOTA),
    "LimitRange": ("quota", NO_QUOTA),
    "QOSClass": ("failed", FAILED),
}
"""What nobody but the user, or time, can change: waiting ends there. Other reasons are only told."""


@dataclass(frozen=True, slots=True)
class Outcome:
    result: Result
    code: int
    message: str


@dataclass(slots=True)
class Part:
    """One size that was asked for."""

    name: str
    path: str
    condition: str
    wanted: int
    text: str
    staged: str = ""
    done: bool = False
    told: set[str] = field(default_factory=set)

    def figures(self, vmi: Object) -> tuple[int, int, int, int]:
        """What the VMI asks for, what its Pod covers, what the hypervisor plugged, what the guest has."""
        status = vmi.get("status") or {}
        own = status.get("hotvirt") or {}
        granted = own.get("granted") or {}
        domain = (vmi.get("spec") or {}).get("domain") or {}
        if self.name == "cpu":
            plugged = (own.get("vcpus") or {}).get("plugged") or 0
            return (
                vcpus_of(domain.get("cpu")),
                granted.get("vcpus") or 0,
                plugged,
                vcpus_of(status.get("currentCPUTopology") or {}),
            )
        figures = status.get("memory") or {}
        plugged = (own.get("memory") or {}).get("plugged") or 0
        asked = (domain.get("memory") or {}).get("guest")
        return size(asked), size(granted.get("memory")), plugged, size(figures.get("guestCurrent"))


def vcpus_of(cpu: Object | None) -> int:
    cpu = cpu or {}
    return (cpu.get("sockets") or 1) * (cpu.get("cores") or 1) * (cpu.get("threads") or 1)


def size(text: Any) -> int:
    return Quantity(text).value if isinstance(text, str | int) else 0


class Progress:
    """Told of each new state of the VM and the VMI, it says what is new, and at the end the outcome."""

    def __init__(self, parts: list[Part], generation: int) -> None:
        self.parts = parts
        self.generation = generation
        self.outcome: Outcome | None = None

    def vm(self, vm: Object | None) -> list[tuple[str, str]]:
        if vm is None:
            self.outcome = Outcome("failed", FAILED, "The VM was deleted.")
            return []
        if int(vm["metadata"].get("generation") or 0) > self.generation and self._superseded(vm):
            self.outcome = Outcome(
                "failed", FAILED, "Another edit of the VM has taken the place of this one."
            )
            return []
        news = []
        condition = _condition(vm, "RestartRequired")
        if condition and int(condition.get("observedGeneration") or 0) >= self.generation:
            for part in self.parts:
                said = [
                    each
                    for each in condition.get("message", "").split("; ")
                    if each.startswith(f"{part.path} ")
                ]
                if said and not part.staged and not part.done:
                    part.staged = said[0]
                    news.append(("restart", said[0]))
        self._judge()
        return news

    def vmi(self, vmi: Object | None) -> list[tuple[str, str]]:
        phase = ((vmi or {}).get("status") or {}).get("phase")
        if vmi is None or vmi["metadata"].get("deletionTimestamp") or phase in ("Succeeded", "Failed"):
            self.outcome = Outcome(
                "failed", FAILED, "The machine stopped; it has the new size when it starts."
            )
            return []
        news: list[tuple[str, str]] = []
        for part in self.parts:
            if not part.done and not part.staged:
                news += self._look(part, vmi)
        self._judge()
        return news

    def _superseded(self, vm: Object) -> bool:
        domain = vm["spec"]["template"]["spec"].get("domain") or {}
        for part in self.parts:
            now = (
                vcpus_of(domain.get("cpu"))
                if part.name == "cpu"
                else size((domain.get("memory") or {}).get("guest"))
            )
            if now != part.wanted:
                return True
        return False

    def _look(self, part: Part, vmi: Object) -> list[tuple[str, str]]:
        asked, covered, plugged, has = part.figures(vmi)
        if asked != part.wanted:
            return []
        news = []
        condition = _condition(vmi, part.condition)
        stages = [
            ("Pod", f"covers {part.text}", covered == asked),
            ("hypervisor", f"{part.text} plugged", plugged == asked),
        ]
        for stage, text, reached in [*stages, ("guest", f"{part.text} in use", has == asked)]:
            if reached and stage not in part.told:
                part.told.add(stage)
                news.append((stage, text))
        if condition is None:
            part.done = has == asked
            return news
        reason, message = condition.get("reason", ""), condition.get("message", "")
        if int(condition.get("observedGeneration") or 0) < int(vmi["metadata"].get("generation") or 0):
            return news
        if reason not in WELL and reason not in part.told:
            part.told.add(reason)
            news.append(("waits", message))
        if reason in ENDS and self.outcome is None:
            result, code = ENDS[reason]
            self.outcome = Outcome(result, code, message)
        return news

    def _judge(self) -> None:
        if self.outcome is not None or not all(part.done or part.staged for part in self.parts):
            return
        staged = [part.staged for part in self.parts if part.staged]
        if staged:
            self.outcome = Outcome("restartRequired", RESTART_REQUIRED, "; ".join(staged))
        else:
            self.outcome = Outcome("done", 0, "")


def _condition(obj: Object, kind: str) -> Object | None:
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == "True":
            found: Object = condition
            return found
    return None
