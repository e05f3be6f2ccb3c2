"""The VM reconciler: keeps a VMI running or not, as the run strategy says, and mirrors it in the VM's status.

What a pass decides is in `plan.runstrategy` and `plan.status`; the starting is in `start.py`, the changes to
a running VMI in `live.py`. A stop is written into the status before it is done, so that a start promised with
it is never lost; a start is done first, because doing it twice is harmless. What comes of it is told when the
VMI shows, together with the finalizer: until then the VMI goes with its VM by its ownerReference.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from hotvirt.api import names
from hotvirt.api.conditions import TRUE, Condition, find, is_true, set_condition
from hotvirt.api.kubevirt import (
    StartFailure,
    StateChangeRequest,
    VirtualMachine,
    VirtualMachineInstance,
    VMStatus,
)
from hotvirt.api.meta import owner_reference, parse_time
from hotvirt.api.resources import VMIS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import NotFound
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Key
from hotvirt.plan import instance, runstrategy, status
from hotvirt.plan.instance import Problem
from hotvirt.plan.runstrategy import Action, Decision, Instance, Request
from hotvirt.plan.status import READY, Situation, Volumes

from .caches import Caches
from .live import LiveUpdater
from .start import Starter
from .writes import add_finalizer, remove_finalizer, write, write_status

FAILURE: Final = "Failure"
RESTART_REQUIRED: Final = "RestartRequired"
OWN_CONDITIONS: Final = frozenset({READY, FAILURE, RESTART_REQUIRED})
ORPHAN: Final = "orphan"
MIRROR_DELAY: Final = 0.2
"""Seconds for which a change of a VMI that goes on may wait for more of them before its VM shows it."""
RETRY_START: Final = 10.0
"""Seconds until a start that the API refused is tried again: that it is allowed now has no event."""
SEEN_WITHIN: Final = 20.0
"""Seconds after which a VMI that was made is looked for, should its event have been missed: longer than any
report waits."""


class VmReconciler:
    def __init__(
        self,
        client: Client,
        caches: Caches,
        recorder: Recorder,
        *,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = lambda: random.uniform(0, status.MAX_JITTER),
    ) -> None:
        self._client = client
        self._caches = caches
        self._recorder = recorder
        self._clock = clock
        self._jitter = jitter
        self._starter = Starter(client, caches, recorder)
        self._live = LiveUpdater(client, caches)

    async def reconcile(self, key: Key) -> float | None:
        vm = self._caches.vms.get(*key)
        if vm is None:
            return None
        vmi = self._caches.vmis.get(*key)
        if vm.metadata.deleting:
            await self._delete(vm, vmi)
            return None
        if vmi is not None and not _owns(vm, vmi):
            vm = await self._hold(vm)
            vmi = await self._adopt(vm, vmi)
            if vmi is None:
                await self._report_foreign(vm)
                return None
        return await self._run(vm, vmi)

    async def _hold(self, vm: VirtualMachine) -> VirtualMachine:
        """Let the VM stay until its VMI has gone."""
        return await add_finalizer(self._client, self._caches.vms, vm, names.FINALIZER_VM)

    async def _run(self, vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> float | None:
        strategy = runstrategy.effective(vm.spec.run_strategy, vm.spec.running)
        seen = _instance(vmi)
        failure = self._start_failure(vm, vmi, strategy)
        decision = runstrategy.decide(
            strategy,
            _requests(vm),
            seen,
            last_strategy=vm.status.run_strategy,
            backoff=self._backoff(failure),
        )
        if decision.strategy is not None:
            await self._switch_strategy(vm, decision.strategy)
            return None
        problem = await self._starter.make_data_volumes(vm)
        if problem is None and decision.problem:
            problem = Problem("UnsupportedRunStrategy", decision.problem)
        if problem is None and decision.action is Action.START:
            problem = await self._starter.start(vm, paused=decision.paused)
            if problem is None:
                return SEEN_WITHIN
        vm = await self._hold(vm)
        causes: Sequence[str] | None = ()
        if vmi is not None and decision.action is Action.NOTHING and not vmi.metadata.deleting:
            before = vmi
            vmi, causes = await self._live.sync(vm, vmi)
            if vmi is not before and not causes:
                return MIRROR_DELAY  # the guest first: that it was passed on is told with what comes of it
        new = self._status(vm, vmi, strategy, decision, failure, problem, causes)
        known_failure = vm.status.start_failure
        vm = await write_status(self._client, self._caches.vms, vm, vm.status, new)
        if failure is not None and vmi is not None and failure != known_failure:
            self._recorder.event(vm, "Warning", "StartFailed", self._why_it_failed(vmi, failure))
        if decision.action is Action.STOP and vmi is not None:
            await self._stop(vm, vmi)
        return RETRY_START if problem is not None else decision.wait

    async def _switch_strategy(self, vm: VirtualMachine, strategy: str) -> None:
        change = (
            {"running": strategy == runstrategy.ALWAYS}
            if vm.spec.run_strategy is None
            else {"runStrategy": strategy}
        )
        await write(self._client, self._caches.vms, vm, {"spec": change})

    # Stopping

    async def _stop(self, vm: VirtualMachine, vmi: VirtualMachineInstance) -> None:
        name = vmi.metadata.name
        try:
            await self._client.delete(VMIS, name, vmi.metadata.namespace, uid=vmi.metadata.uid)
        except NotFound:
            return
        self._recorder.event(
            vm,
            "Normal",
            "SuccessfulDelete",
            f"Stopped the virtual machine by deleting the virtual machine instance {name}",
        )

    async def _delete(self, vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> None:
        if names.FINALIZER_VM not in vm.metadata.finalizers:
            return
        orphan = ORPHAN in vm.metadata.finalizers
        if vmi is None or orphan or not _owns(vm, vmi):
            await remove_finalizer(self._client, self._caches.vms, vm, names.FINALIZER_VM)
            return
        strategy = runstrategy.effective(vm.spec.run_strategy, vm.spec.running)
        new = self._status(vm, vmi, strategy, Decision(), vm.status.start_failure, None, ())
        vm = await write_status(self._client, self._caches.vms, vm, vm.status, new)
        if not vmi.metadata.deleting:
            await self._stop(vm, vmi)

    # VMIs of the same name

    async def _adopt(self, vm: VirtualMachine, vmi: VirtualMachineInstance) -> VirtualMachineInstance | None:
        """A VMI without a controller becomes the VM's (one that a VM deleted with --cascade=orphan left)."""
        if vmi.metadata.controller_of() is not None or vmi.metadata.deleting:
            return None
        owners = [msgspec.to_builtins(owner) for owner in vmi.metadata.owner_references]
        return await write(
            self._client,
            self._caches.vmis,
            vmi,
            {"metadata": {"ownerReferences": [*owners, owner_reference(vm)]}},
        )

    async def _report_foreign(self, vm: VirtualMachine) -> None:
        strategy = runstrategy.effective(vm.spec.run_strategy, vm.spec.running)
        problem = Problem(
            "FailedCreate",
            f"A VirtualMachineInstance named {vm.metadata.name} exists and belongs to another owner: "
            "delete it, or give this VM another name.",
        )
        new = self._status(
            vm, None, strategy, Decision(requests=_requests(vm)), vm.status.start_failure, problem, ()
        )
        await write_status(self._client, self._caches.vms, vm, vm.status, new)

    # Status

    def _start_failure(
        self, vm: VirtualMachine, vmi: VirtualMachineInstance | None, strategy: str
    ) -> StartFailure | None:
        """How often in a row a VMI ended before it ever ran."""
        old = vm.status.start_failure
        if strategy not in status.BACKING_OFF:
            return None
        if vmi is None:
            return old
        if instance.was_running(vmi.status):
            return None
        ended_early = vmi.status.phase in runstrategy.FINAL_PHASES and not vmi.metadata.deleting
        if not ended_early or (old is not None and old.last_failed_vmi_uid == vmi.metadata.uid):
            return old
        count = (old.consecutive_fail_count if old is not None else 0) + 1
        retry = self._clock() + status.start_delay(count, self._jitter())
        return StartFailure(
            consecutive_fail_count=count,
            last_failed_vmi_uid=vmi.metadata.uid,
            retry_after_timestamp=datetime.fromtimestamp(retry, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    def _why_it_failed(self, vmi: VirtualMachineInstance, failure: StartFailure) -> str:
        return (
            f"The machine ended before it ran, {failure.consecutive_fail_count} times in a row. "
            f"{instance.last_words(self._caches.pod_of(vmi))} "
            f"The next start is tried at {failure.retry_after_timestamp}."
        )

    def _backoff(self, failure: StartFailure | None) -> float:
        if failure is None or failure.retry_after_timestamp is None:
            return 0.0
        return max(0.0, parse_time(failure.retry_after_timestamp) - self._clock())

    def _status(
        self,
        vm: VirtualMachine,
        vmi: VirtualMachineInstance | None,
        strategy: str,
        decision: Decision,
        failure: StartFailure | None,
        problem: Problem | None,
        causes: Sequence[str] | None,
    ) -> VMStatus:
        seen = _instance(vmi)
        vmi_conditions = vmi.status.conditions if vmi is not None else ()
        word = status.printable_status(
            Situation(
                strategy=strategy,
                instance=seen,
                conditions=vmi_conditions,
                requests=decision.requests,
                deleting=vm.metadata.deleting,
                starting=decision.action is Action.START and problem is None,
                stopping=decision.action is Action.STOP,
                volumes=self._volumes(vm),
                start_failures=failure.consecutive_fail_count if failure is not None else 0,
            )
        )
        return msgspec.structs.replace(
            vm.status,
            printable_status=word,
            created=vmi is not None,
            ready=seen is not None and not seen.deleting and is_true(vmi_conditions, READY),
            run_strategy=strategy,
            observed_generation=_observed_generation(vm, vmi),
            desired_generation=vm.metadata.generation,
            conditions=_conditions(vm, vmi, problem, causes),
            state_change_requests=tuple(
                StateChangeRequest(action=each.action, uid=each.uid or None, data=dict(each.data))
                for each in decision.requests
            ),
            start_failure=failure,
        )

    def _volumes(self, vm: VirtualMachine) -> Volumes:
        namespace = vm.metadata.namespace
        failed = provisioning = unbound = False
        for volume in vm.spec.template.spec.volumes:
            if not volume.claim_name:
                continue
            made = self._caches.data_volumes.get(namespace, volume.claim_name) if volume.data_volume else None
            if made is not None:
                failed = failed or made.status.phase == "Failed"
                provisioning = provisioning or made.status.phase not in {
                    "Failed",
                    *instance.USABLE_DATA_VOLUMES,
                }
            else:
                claim = self._caches.claims.get(namespace, volume.claim_name)
                unbound = unbound or (claim is not None and claim.status.phase == "Pending")
        return Volumes(failed, provisioning, unbound)


def mirror_delay(old: VirtualMachineInstance | None, new: VirtualMachineInstance | None) -> float:
    """What starts, ends or fails a machine is shown at once, what only changes about it a moment later.

    A new VMI has nothing to say yet, and will in a moment.
    """
    if old is None and new is not None and not new.status.phase:
        return MIRROR_DELAY
    if old is None or new is None or old.metadata.uid != new.metadata.uid:
        return 0.0
    same = (
        old.status.phase == new.status.phase
        and old.metadata.deleting == new.metadata.deleting
        and is_true(old.status.conditions, READY) == is_true(new.status.conditions, READY)
    )
    return MIRROR_DELAY if same else 0.0


def _owns(vm: VirtualMachine, vmi: VirtualMachineInstance) -> bool:
    controller = vmi.metadata.controller_of()
    return controller is not None and controller.uid == vm.metadata.uid


def _instance(vmi: VirtualMachineInstance | None) -> Instance | None:
    return None if vmi is None else Instance(vmi.metadata.uid, vmi.status.phase, vmi.metadata.deleting)


def _requests(vm: VirtualMachine) -> tuple[Request, ...]:
    return tuple(Request(each.action, each.uid or "", each.data) for each in vm.status.state_change_requests)


def _observed_generation(vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> int:
    """The generation of the VM that its VMI stands for; without a VMI there is nothing left to do for any."""
    if vmi is None:
        return vm.metadata.generation
    text = vmi.metadata.annotations.get(names.ANNOTATION_VM_GENERATION, "")
    return int(text) if text.isdecimal() else vm.status.observed_generation


def _conditions(
    vm: VirtualMachine,
    vmi: VirtualMachineInstance | None,
    problem: Problem | None,
    causes: Sequence[str] | None,
) -> tuple[Condition, ...]:
    """The VM's own conditions, and those of its VMI."""
    old = vm.status.conditions
    mirrored = vmi.status.conditions if vmi is not None else ()
    conditions = [_kept(old, status.ready_condition(_instance(vmi), mirrored))]
    conditions += [condition for condition in mirrored if condition.type not in OWN_CONDITIONS]
    restart = find(old, RESTART_REQUIRED)
    if causes is None and restart is not None:
        conditions.append(restart)
    elif causes:
        message = "; ".join(causes)
        conditions.append(
            _kept(old, Condition(type=RESTART_REQUIRED, status=TRUE, reason="RestartNeeded", message=message))
        )
    if problem is not None:
        conditions.append(
            _kept(old, Condition(type=FAILURE, status=TRUE, reason=problem.reason, message=problem.message))
        )
    # kubectl wait takes a condition for stale that was not observed at the VM's own generation.
    generation = vm.metadata.generation
    return tuple(msgspec.structs.replace(each, observed_generation=generation) for each in conditions)


def _kept(old: Sequence[Condition], new: Condition) -> Condition:
    """The condition with the time since when it has been so."""
    if new.last_transition_time is not None:
        return new
    before = find(old, new.type)
    return set_condition([before] if before is not None else [], new)[0]
