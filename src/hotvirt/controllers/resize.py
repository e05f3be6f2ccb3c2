"""Brings a running VMI's Pod to the size that its spec asks for, and says in its conditions how far that is.

A growth: this asks the Pod for more (`pods/resize`), the node gives it, this grants it, the node agent brings
hypervisor and guest there, this ends the change. Shrinking runs the same road backwards.
`plan.change` and `plan.podresize` decide what to do next; here are the writes, the events, and the memory of
what was refused. Lost, that means one more try.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from hotvirt.api import names
from hotvirt.api.conditions import TRUE, Condition, find, remove, set_condition
from hotvirt.api.core import Pod
from hotvirt.api.kubevirt import SizeChange, VirtualMachineInstance, VMIStatus
from hotvirt.api.meta import micro_time, parse_time
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import PODS, VMIS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import Conflict, Forbidden, Invalid, NotFound
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Key
from hotvirt.plan import change, podresize
from hotvirt.plan.change import CONDITIONS, View
from hotvirt.plan.instance import observed_at
from hotvirt.plan.memory import guest_memory
from hotvirt.plan.podresize import Cause, Refusal, Size, Step, Verdict
from hotvirt.plan.runstrategy import RUNNING
from hotvirt.plan.stages import WELL
from hotvirt.plan.topology import topology

from .agents import Agents, tell_if_missing
from .caches import Caches
from .worlds import Worlds
from .writes import write_status

RETRY_REFUSED: Final = 300.0
"""Seconds until a size is asked for again that was refused for a reason whose end nothing tells."""
SECOND_TRY: Final = 2.0
"""Seconds until a size is asked for once more that was refused just after something had changed: the API
server counts with its own copies of quotas, limits and Pods, and no event tells when they have caught up."""
QUIET: Final = 1.0
"""Seconds before a stage that goes well is written into the condition: most changes are over sooner."""
AT_ONCE: Final = 0.1
"""Seconds for a node to give a larger Pod its size: then one write begins the change and grants it."""


@dataclass(frozen=True, slots=True)
class _Refused:
    key: Key
    node: str
    refusal: Refusal
    second_try: float | None = None
    """When to ask once more although nothing has changed."""

    def changed(self, refusal: Refusal) -> bool:
        """Refused again for what has changed since: the API server may not have seen that yet."""
        mine = self.refusal
        return (mine.target, mine.cause) == (refusal.target, refusal.cause) and mine.world != refusal.world


@dataclass(frozen=True, slots=True)
class _Resized:
    """What we did to a Pod's size last."""

    uid: str
    version: int
    """The Pod's version after it."""
    generation: int
    """Of the VMI that it was done for."""
    at: float


@dataclass(frozen=True, slots=True)
class _Sight:
    """One look at a VMI and its Pod."""

    vmi: VirtualMachineInstance
    pod: Pod
    seen: View
    gate: bool
    asked: Size
    actual: Size | None
    target: Size

    @property
    def pending(self) -> tuple[str, ...]:
        differs = podresize.differing(self.asked, self.actual, self.target)
        return change.pending(self.vmi, self.seen, differs, unseen=not podresize.is_seen(self.pod))

    def grant(self) -> change.Guest:
        in_force = self.actual if podresize.is_seen(self.pod) else None
        return change.grant(self.seen, self.target, self.asked, in_force)


class PodResizer:
    def __init__(
        self,
        client: Client,
        caches: Caches,
        recorder: Recorder,
        agents: Agents | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._caches = caches
        self._recorder = recorder
        self._agents = agents
        self._clock = clock
        self._refused: dict[str, _Refused] = {}
        self._resized: dict[Key, _Resized] = {}

    def forget(self, key: Key) -> None:
        """The VMI is gone."""
        self._refused = {uid: entry for uid, entry in self._refused.items() if entry.key != key}
        self._resized.pop(key, None)

    def waiting_for_node(self, name: str) -> Iterable[Key]:
        """VMIs on that node whose size was refused: something there changed."""
        return [entry.key for entry in self._refused.values() if entry.node == name]

    def waiting_in(self, namespace: str) -> Iterable[Key]:
        return [entry.key for entry in self._refused.values() if entry.key[0] == namespace]

    async def sync(
        self, vmi: VirtualMachineInstance, pod: Pod
    ) -> tuple[VirtualMachineInstance, float | None]:
        """One step. The VMI as it is then, and when to look again (None: when something changes)."""
        if vmi.status.phase != RUNNING or vmi.metadata.deleting or pod.metadata.deleting:
            return vmi, None
        sight = self._look(vmi, pod)
        if sight is None:
            return vmi, None
        granted = sight.grant()
        if not granted.exceeds(sight.seen.granted):
            pass  # it falls or stays: that depends on the VMI alone, which the write is tied to
        elif (fresh := await self._fresh(sight)) is None:
            return vmi, None
        else:
            # A stale copy of the Pod could show a size that we have taken back since.
            sight = fresh
            granted = sight.grant()
        if (
            sight.pending
            and granted.status() == vmi.status.hotvirt.granted
            and podresize.grows_only(sight.target, sight.asked)
        ):
            # Nothing depends on which of the two comes first: a larger Pod does no harm.
            verdict = await self._step(sight)
            left = self._may_wait(sight, verdict)
            if left > 0:
                return vmi, left
            return await self._report(await self._begin_or_grant(sight, granted), verdict)
        sight = await self._begin_or_grant(sight, granted)
        if not sight.pending and not _has_ended(sight):
            # A copy of the Pod from before we asked for more would show a change that is over.
            fresh = await self._fresh(sight)
            if fresh is None:
                return sight.vmi, None
            sight = fresh
        if not sight.pending:
            return await self._end(sight), None
        wrote = sight.vmi.metadata.resource_version != vmi.metadata.resource_version
        verdict = await self._step(sight, proven=wrote)
        return await self._report(sight, verdict)

    def _look(self, vmi: VirtualMachineInstance, pod: Pod) -> _Sight | None:
        config = self._caches.config
        gate = config.gate(names.GATE_IN_PLACE_HOTPLUG)
        seen = change.view(vmi, gate)
        if seen is None:
            return None
        asked = podresize.asked_size(pod, names.CONTAINER_COMPUTE)
        actual = podresize.actual_size(pod, names.CONTAINER_COMPUTE)
        target = asked if seen.settled and _calm(seen) else change.pod_target(vmi.spec, config, seen, asked)
        return _Sight(vmi, pod, seen, gate, asked, actual, target)

    async def _fresh(self, sight: _Sight) -> _Sight | None:
        """With a Pod that is no older than what we did to it last."""
        metadata = sight.pod.metadata
        last = self._resized.get(sight.vmi.metadata.key)
        if last and last.uid == metadata.uid and int(metadata.resource_version) >= last.version:
            return sight
        try:
            pod = await self._client.get(PODS, metadata.name, metadata.namespace, cls=Pod)
        except NotFound:
            return None
        return self._look(sight.vmi, pod) if pod.metadata.uid == metadata.uid else None

    # Beginning, granting, ending

    def _asked_at(self, sight: _Sight) -> float | None:
        """When the Pod was asked for what this generation of the VMI wants; None: not by us."""
        last = self._resized.get(sight.vmi.metadata.key)
        mine = last and (last.uid, last.generation) == (sight.pod.metadata.uid, sight.vmi.metadata.generation)
        return last.at if last and mine else None

    def _may_wait(self, sight: _Sight, verdict: Verdict) -> float:
        """Seconds for which the beginning of a growth need not be told: the grant may tell it."""
        at, seen = self._asked_at(sight), sight.seen
        begun = sight.vmi.status.hotvirt.change is not None
        if at is None or begun or verdict.reason not in WELL or not seen.wanted.exceeds(seen.granted):
            return 0.0
        return at + AT_ONCE - self._clock()

    async def _begin_or_grant(self, sight: _Sight, granted: change.Guest) -> _Sight:
        """The writes that come before the Pod is asked: that a change has begun, and what is granted."""
        vmi, old = sight.vmi, sight.vmi.status
        new, begins = old, False
        if old.hotvirt.granted != granted.status():
            claimed = change.claimed_with(old.hotvirt.claimed, sight.seen.granted, granted)
            new = _with_hotvirt(new, granted=granted.status(), claimed=claimed)
        missing = [kind for kind in sight.pending if find(old.conditions, kind) is None]
        conditions = list(old.conditions)
        for kind in missing:
            condition = self._condition(sight, kind, "PodResize", _first(sight, granted))
            conditions = set_condition(conditions, condition)
        if missing:
            begins = old.hotvirt.change is None
            new = msgspec.structs.replace(new, conditions=tuple(conditions))
        if begins:
            new = _with_hotvirt(new, change=_start_of(sight, self._asked_at(sight) or self._clock()))
        if new is not old:
            new = _seen_now(vmi, new)
        vmi = await write_status(self._client, self._caches.vmis, vmi, old, new)
        if begins:
            self._recorder.event(vmi, "Normal", "ResizeStarted", _change_text(vmi) or _pod_text(sight.target))
        return replace(sight, vmi=vmi, seen=replace(sight.seen, granted=granted))

    async def _end(self, sight: _Sight) -> VirtualMachineInstance:
        vmi, old = sight.vmi, sight.vmi.status
        self._refused.pop(vmi.metadata.uid, None)
        conditions = list(old.conditions)
        for kind in CONDITIONS:
            conditions = remove(conditions, kind)
        new = _seen_now(vmi, msgspec.structs.replace(old, conditions=tuple(conditions)))
        new = _with_hotvirt(new, change=None, settled_generation=vmi.metadata.generation)
        begun = old.hotvirt.change
        vmi = await write_status(self._client, self._caches.vmis, vmi, old, new)
        if begun is None or not begun.started_at:
            return vmi
        took = round((self._clock() - parse_time(begun.started_at)) * 1000)
        text = _change_text(vmi, begun)
        if not text and vmi.metadata.generation == max(1, old.hotvirt.settled_generation) + 1:
            # One edit cannot have taken itself back: it was about the Pod alone.
            text = _pod_text(sight.asked)
        if text:
            self._recorder.event(vmi, "Normal", "ResizeCompleted", f"{text} in {took} ms")
        else:
            self._recorder.event(
                vmi, "Normal", "ResizeReverted", f"{_size_text(vmi)}: as before, after {took} ms"
            )
        return vmi

    # The Pod

    async def _prove(self, vmi: VirtualMachineInstance) -> None:
        """A Pod is made smaller on the newest VMI alone: an older one may not show what was claimed since."""
        newest = await self._client.get(
            VMIS, vmi.metadata.name, vmi.metadata.namespace, cls=VirtualMachineInstance
        )
        if newest.metadata.resource_version != vmi.metadata.resource_version:
            raise Conflict(409, "Conflict", "the VMI has changed")

    async def _step(self, sight: _Sight, *, proven: bool = False) -> Verdict:
        """`proven`: the VMI has just been written, so it is the newest."""
        vmi, pod = sight.vmi, sight.pod
        around = Worlds(self._caches, vmi, pod, era=str(self._clock() // RETRY_REFUSED))
        known = self._refused.get(vmi.metadata.uid)
        again = known is not None and known.second_try is not None and known.second_try <= self._clock()
        verdict = podresize.decide(
            target=sight.target,
            asked=sight.asked,
            actual=sight.actual,
            conditions=_answers(pod),
            worlds=around,
            refusal=known.refusal if known and not again else None,
        )
        second_try = known.second_try if known and not again else None
        if verdict.step is Step.ASK:
            if not (proven or podresize.grows_only(sight.target, sight.asked)):
                await self._prove(vmi)
            before = dict(around)  # what changes while the API answers is a reason to ask again
            try:
                await self._resize(vmi, pod, sight.target)
            except (Forbidden, Invalid) as error:
                refusal = podresize.refused_by_api(
                    sight.target, before, code=error.code, message=error.message, details=error.details
                )
                back = podresize.fallback(refusal, sight.asked, sight.actual)
                verdict = podresize.refused(refusal, back)
                after_a_change = known is not None and known.changed(refusal)
                second_try = self._clock() + SECOND_TRY if after_a_change else None
        if verdict.step is Step.REFUSED and verdict.size is not None:
            await self._resize(vmi, pod, verdict.size)
        if verdict.refusal is not None and (
            known is None or known.refusal != verdict.refusal or known.second_try != second_try
        ):
            self._refused[vmi.metadata.uid] = _Refused(
                vmi.metadata.key, pod.spec.node_name, verdict.refusal, second_try
            )
            if known is None or known.refusal.message != verdict.refusal.message:
                self._recorder.event(vmi, "Warning", "ResizeRefused", verdict.message)
        elif verdict.step is not Step.REFUSED:
            self._refused.pop(vmi.metadata.uid, None)
        return verdict

    async def _resize(self, vmi: VirtualMachineInstance, pod: Pod, size: Size) -> None:
        patch = size.patch(names.CONTAINER_COMPUTE)
        patch["metadata"] = {"resourceVersion": pod.metadata.resource_version}
        self._resized.pop(vmi.metadata.key, None)  # until the answer is here, nobody knows what it is
        at = self._clock()
        resized = await self._client.patch(
            PODS,
            pod.metadata.name,
            patch,
            pod.metadata.namespace,
            kind="strategic",
            subresource="resize",
            cls=Pod,
        )
        self._caches.pods.learn(resized)
        self._resized[vmi.metadata.key] = _Resized(
            pod.metadata.uid, int(resized.metadata.resource_version), vmi.metadata.generation, at
        )

    # Telling

    async def _report(self, sight: _Sight, verdict: Verdict) -> tuple[VirtualMachineInstance, float | None]:
        vmi, old = sight.vmi, sight.vmi.status
        begun = old.hotvirt.change
        conditions = [
            each for each in old.conditions if each.type not in CONDITIONS or each.type in sight.pending
        ]
        well = True
        no_agent = self._agents.problem(sight.pod.spec.node_name) if self._agents is not None else None
        for kind in sight.pending:
            reason, message = change.explain(
                kind, sight.seen, verdict, old.hotvirt.obstacles, sight.gate, no_agent
            )
            well = well and reason in WELL
            conditions = set_condition(conditions, self._condition(sight, kind, reason, message))
        if well and begun is not None and begun.started_at and len(conditions) == len(old.conditions):
            left = parse_time(begun.started_at) + QUIET - self._clock()
            if left > 0:
                return vmi, left
        new = _seen_now(vmi, msgspec.structs.replace(old, conditions=tuple(conditions)))
        vmi = await write_status(self._client, self._caches.vmis, vmi, old, new)
        tell_if_missing(self._recorder, vmi, old, *CONDITIONS)
        return vmi, self._next_try(vmi, verdict)

    def _next_try(self, vmi: VirtualMachineInstance, verdict: Verdict) -> float | None:
        """Seconds until a refused size is worth another look although nothing tells of it."""
        if verdict.refusal is not None and verdict.refusal.cause is Cause.OTHER:
            return RETRY_REFUSED
        known = self._refused.get(vmi.metadata.uid)
        if known is None or known.second_try is None:
            return None
        return max(0.0, known.second_try - self._clock())

    @staticmethod
    def _condition(sight: _Sight, kind: str, reason: str, message: str) -> Condition:
        vmi = sight.vmi
        return Condition(
            type=kind,
            status=TRUE,
            reason=reason,
            message=f"{_dimension_text(vmi, kind, sight.seen)}: {message}",
            observed_generation=vmi.metadata.generation,
        )


def _answers(pod: Pod) -> tuple[Condition, ...]:
    """What the node says of the size that is asked for now: its word about an earlier one may still stand."""
    generation = pod.metadata.generation
    return tuple(
        each for each in pod.status.conditions if (each.observed_generation or generation) >= generation
    )


def _has_ended(sight: _Sight) -> bool:
    """Whether nothing is left to be told of a change."""
    status = sight.vmi.status
    told = any(find(status.conditions, kind) for kind in CONDITIONS)
    return sight.seen.settled and status.hotvirt.change is None and not told


def _calm(seen: View) -> bool:
    return seen.at_rest(change.CPU_RESOURCE) and seen.at_rest(change.MEMORY_RESOURCE)


def _with_hotvirt(status: VMIStatus, **fields: object) -> VMIStatus:
    hotvirt = msgspec.structs.replace(status.hotvirt, **fields)
    return msgspec.structs.replace(status, hotvirt=hotvirt)


def _seen_now(vmi: VirtualMachineInstance, status: VMIStatus) -> VMIStatus:
    """`kubectl wait` believes no condition that was observed at an older generation."""
    conditions = observed_at(status.conditions, vmi.metadata.generation)
    return msgspec.structs.replace(status, conditions=tuple(conditions))


def _first(sight: _Sight, granted: change.Guest) -> str:
    if granted.exceeds(sight.seen.granted):
        return "the Pod has its new size, now it is the guest's turn."
    return "the Pod comes first, then the guest."


def _start_of(sight: _Sight, at: float) -> SizeChange:
    shape = topology(sight.vmi.spec.domain)
    current = sight.seen.current
    return SizeChange(
        sockets=max(1, current.vcpus // (shape.cores * shape.threads)),
        guest=_memory(sight.vmi, current.memory),
        started_at=micro_time(at),
    )


def _memory(vmi: VirtualMachineInstance, amount: int) -> Quantity:
    return Quantity.bytes(amount).in_family_of(guest_memory(vmi.spec))


def _dimension_text(vmi: VirtualMachineInstance, kind: str, seen: View) -> str:
    begun = vmi.status.hotvirt.change
    if kind == change.HOT_VCPU_CHANGE:
        shape = topology(vmi.spec.domain)
        old = begun.sockets if begun else seen.current.vcpus // (shape.cores * shape.threads)
        return f"sockets {old} → {shape.sockets}"
    if kind == change.HOT_MEMORY_CHANGE:
        before = begun.guest if begun and begun.guest else _memory(vmi, seen.current.memory)
        return f"memory {before} → {guest_memory(vmi.spec)}"
    return "resources of the Pod"


def _change_text(vmi: VirtualMachineInstance, begun: SizeChange | None = None) -> str:
    """From the size at the start to what is wanted; empty when they are the same."""
    begun = begun or vmi.status.hotvirt.change or SizeChange()
    shape, memory = topology(vmi.spec.domain), guest_memory(vmi.spec)
    parts = []
    if begun.sockets != shape.sockets:
        each = shape.cores * shape.threads
        parts.append(
            f"sockets {begun.sockets} → {shape.sockets} ({begun.sockets * each} → {shape.vcpus} vCPUs)"
        )
    if begun.guest is not None and begun.guest != memory:
        parts.append(f"memory {begun.guest} → {memory}")
    return ", ".join(parts)


def _pod_text(size: Size) -> str:
    return f"resources of the Pod: {size}"


def _size_text(vmi: VirtualMachineInstance) -> str:
    return f"sockets {topology(vmi.spec.domain).sockets}, memory {guest_memory(vmi.spec)}"
