"""What a VM's run strategy and its queued requests mean for its VMI: start one, stop it, or leave it.

The strategies behave as KubeVirt's users know them. The queue is `status.stateChangeRequests` of the VM,
written by start, stop and restart; its first request is acted on, and leaves the queue when what it asked
for is so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

ALWAYS: Final = "Always"
RERUN_ON_FAILURE: Final = "RerunOnFailure"
MANUAL: Final = "Manual"
HALTED: Final = "Halted"
ONCE: Final = "Once"
WAIT_AS_RECEIVER: Final = "WaitAsReceiver"

START_REQUEST: Final = "Start"
STOP_REQUEST: Final = "Stop"
PAUSED_KEY: Final = "paused"

PENDING: Final = "Pending"
SCHEDULING: Final = "Scheduling"
SCHEDULED: Final = "Scheduled"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
FINAL_PHASES: Final = frozenset({SUCCEEDED, FAILED})
STARTING_PHASES: Final = frozenset({"", PENDING, SCHEDULING, SCHEDULED})


class Action(Enum):
    NOTHING = "nothing"
    START = "start"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Request:
    """One entry of the queue. A Stop is meant for the VMI with that uid, whatever runs later."""

    action: str
    uid: str = ""
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def paused(self) -> bool:
        return self.data.get(PAUSED_KEY) == "true"


@dataclass(frozen=True, slots=True)
class Instance:
    """What the decision needs to know of the VMI."""

    uid: str
    phase: str = ""
    deleting: bool = False

    @property
    def final(self) -> bool:
        return self.phase in FINAL_PHASES


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action = Action.NOTHING
    requests: tuple[Request, ...] = ()
    """The queue as it should be now, written before the action: a start that was promised is never lost."""
    paused: bool = False
    """The VMI starts with its vCPUs stopped."""
    strategy: str | None = None
    """The run strategy that the VM's spec should have from now on."""
    wait: float | None = None
    """A start is due in so many seconds."""
    problem: str = ""


def effective(run_strategy: str | None, running: bool | None) -> str:
    """The run strategy of a VM's spec, where the deprecated `running` may stand for it."""
    if run_strategy:
        return run_strategy
    return ALWAYS if running else HALTED


def settle(requests: Sequence[Request], instance: Instance | None) -> tuple[Request, ...]:
    """The queue without the requests at its head that are carried out."""
    queue = tuple(requests)
    while queue and _carried_out(queue[0], instance):
        queue = queue[1:]
    return queue


def _carried_out(request: Request, instance: Instance | None) -> bool:
    if request.action == STOP_REQUEST:
        return instance is None or instance.uid != request.uid
    # A VMI that ends is not what the start asked for, but what a stop before it left behind.
    return instance is not None and not instance.final and not instance.deleting


def has_start(queue: Sequence[Request]) -> bool:
    return bool(queue) and queue[0].action == START_REQUEST


def has_stop(queue: Sequence[Request], instance: Instance) -> bool:
    return bool(queue) and queue[0].action == STOP_REQUEST and queue[0].uid == instance.uid


def set_to_start(strategy: str, requests: Sequence[Request], instance: Instance | None) -> bool:
    """Whether the VM is meant to run, or to run soon."""
    if strategy == MANUAL:
        return not has_stop(requests, instance) if instance else has_start(requests)
    if strategy == RERUN_ON_FAILURE:
        return instance.phase != SUCCEEDED if instance else has_start(requests)
    if strategy == ONCE:
        return instance is None
    return strategy == ALWAYS


def decide(
    strategy: str,
    requests: Sequence[Request],
    instance: Instance | None,
    *,
    last_strategy: str = "",
    backoff: float = 0.0,
) -> Decision:
    """What to do now.

    `last_strategy` is the one in the VM's status, `backoff` the seconds until a start may be tried.
    """
    queue = settle(requests, instance)
    if strategy not in _DECIDERS:
        return Decision(
            requests=queue,
            problem=f"runStrategy {strategy} is not supported; use one of {', '.join(_DECIDERS)}",
        )
    if instance is not None and instance.deleting:
        return Decision(requests=queue)
    if (
        strategy == RERUN_ON_FAILURE
        and instance is None
        and last_strategy != strategy
        and not has_start(queue)
    ):
        # Switched to this strategy just now: that alone is a reason to start, once.
        queue = (*queue, Request(START_REQUEST))
    decision = _DECIDERS[strategy](queue, instance)
    if decision.action is not Action.START:
        return decision
    if backoff > 0 and strategy != ONCE:
        return Decision(requests=decision.requests, wait=backoff)
    return Decision(Action.START, decision.requests, paused=has_start(queue) and queue[0].paused)


def _always(queue: tuple[Request, ...], instance: Instance | None) -> Decision:
    if instance is None:
        return Decision(Action.START, queue)
    if instance.final or has_stop(queue, instance):
        return Decision(Action.STOP, queue)
    return Decision(requests=queue)


def _rerun_on_failure(queue: tuple[Request, ...], instance: Instance | None) -> Decision:
    if instance is None:
        return Decision(Action.START if has_start(queue) else Action.NOTHING, queue)
    if has_stop(queue, instance):
        return Decision(Action.STOP, queue)
    if instance.final:
        owed = instance.phase == FAILED and not has_start(queue)
        return Decision(Action.STOP, (*queue, Request(START_REQUEST)) if owed else queue)
    return Decision(requests=queue)


def _manual(queue: tuple[Request, ...], instance: Instance | None) -> Decision:
    if instance is None:
        return Decision(Action.START if has_start(queue) else Action.NOTHING, queue)
    return Decision(Action.STOP if has_stop(queue, instance) else Action.NOTHING, queue)


def _halted(queue: tuple[Request, ...], instance: Instance | None) -> Decision:
    if instance is not None:
        return Decision(Action.STOP, queue)
    if has_start(queue):
        return Decision(requests=queue, strategy=ALWAYS)
    return Decision(requests=queue)


def _once(queue: tuple[Request, ...], instance: Instance | None) -> Decision:
    if instance is None:
        return Decision(Action.START, queue)
    return Decision(Action.STOP if has_stop(queue, instance) else Action.NOTHING, queue)


_DECIDERS = {
    ALWAYS: _always,
    RERUN_ON_FAILURE: _rerun_on_failure,
    MANUAL: _manual,
    HALTED: _halted,
    ONCE: _once,
}
