"""The VMI reconciler: makes the launcher Pod, hands it over to its node's agent, and follows it to its end.

A VMI lives once: its Pod is made once, under a name that follows from the VMI's uid, and when the Pod is gone
the VMI has ended. Making a new one is the VM reconciler's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from hotvirt.api import names
from hotvirt.api.conditions import FALSE, TRUE, Condition, find, is_true
from hotvirt.api.core import PersistentVolumeClaim, Pod
from hotvirt.api.kubevirt import VirtualMachineInstance, VMIStatus
from hotvirt.api.meta import now
from hotvirt.api.resources import DATAVOLUMES, PODS, PVCS, VMS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Key
from hotvirt.plan import instance
from hotvirt.plan.agents import waits_for_agent
from hotvirt.plan.change import CONDITIONS
from hotvirt.plan.instance import BEFORE_HANDOVER, FAILED_CREATE, Problem, VolumesView
from hotvirt.plan.machine import MachineError
from hotvirt.plan.platform import EMBEDDED, Platform
from hotvirt.plan.pod import UNPAUSED_GATE, launcher_pod, pod_grace_period, pod_name
from hotvirt.plan.resources import demanded_limits
from hotvirt.plan.revision import revision_name
from hotvirt.plan.runstrategy import FINAL_PHASES, PENDING, RUNNING, SCHEDULED, SUCCEEDED
from hotvirt.plan.status import PAUSED, SYNCHRONIZED

from .agents import Agents, tell_if_missing
from .caches import Caches, owns
from .resize import PodResizer
from .writes import add_finalizer, remove_finalizer, write, write_status

RETRY_CREATE: Final = 10.0
"""Seconds until a Pod that the API refused is tried again: that it is allowed now has no event."""
SEEN_WITHIN: Final = 20.0
"""Seconds after which a Pod that was made is looked for, should its event have been missed: longer than any
report waits."""

FOREIGN: Final = "a Pod named {pod} exists and does not belong to this VMI: delete that Pod."


class VmiReconciler:
    def __init__(
        self,
        client: Client,
        caches: Caches,
        recorder: Recorder,
        platform: Platform = EMBEDDED,
        agents: Agents | None = None,
    ) -> None:
        self._client = client
        self._caches = caches
        self._recorder = recorder
        self._platform = platform
        self._agents = agents
        self.resizer = PodResizer(client, caches, recorder, agents)

    async def reconcile(self, key: Key) -> float | None:
        vmi = self._caches.vmis.get(*key)
        if vmi is None:
            self.resizer.forget(key)
            return None
        pod = self._caches.pod_of(vmi)
        if pod is None and self._should_have_pod(vmi):
            pod = await self._look_for_pod(vmi)
        if vmi.metadata.deleting:
            await self._delete(vmi, pod)
            return None
        if vmi.status.phase in FINAL_PHASES:
            await self._observe(vmi, pod, None)
            return None
        vmi = await add_finalizer(self._client, self._caches.vmis, vmi, names.FINALIZER_VMI)
        again, problem = None, None
        if pod is None and vmi.status.phase in ("", PENDING):
            wanted, problem = await self._wanted_pod(vmi)
            if wanted is not None:
                pod, problem = await self._make_pod(vmi, wanted)
                if pod is None and problem is None:
                    return SEEN_WITHIN  # its own event brings us back
            again = RETRY_CREATE if problem is not None and problem.reason == FAILED_CREATE else None
        vmi = await self._observe(vmi, pod, problem)
        if pod is None:
            return again
        await self._open_gate(vmi, pod)
        _, later = await self.resizer.sync(vmi, pod)
        return later

    @staticmethod
    def _should_have_pod(vmi: VirtualMachineInstance) -> bool:
        if vmi.metadata.deleting:
            return names.FINALIZER_VMI in vmi.metadata.finalizers
        return vmi.status.phase not in FINAL_PHASES and vmi.status.phase not in ("", PENDING)

    async def _look_for_pod(self, vmi: VirtualMachineInstance) -> Pod | None:
        """Ask the API itself: that a Pod is not in the cache yet is no proof that it has gone."""
        try:
            found = await self._client.get(PODS, pod_name(vmi), vmi.metadata.namespace, cls=Pod)
        except NotFound:
            return None
        return found if owns(vmi, found) else None

    # Making the Pod

    async def _wanted_pod(self, vmi: VirtualMachineInstance) -> tuple[dict[str, Any] | None, Problem | None]:
        """The Pod to be made; None while its volumes are not ready, or where there can be none."""
        volumes, claims = await self._volumes(vmi)
        if not volumes.ready:
            return None, volumes.missing
        try:
            limited = demanded_limits(self._caches.quotas.list(vmi.metadata.namespace))
            return launcher_pod(vmi, self._caches.config, claims, limited, self._platform), None
        except MachineError as error:
            return None, self._failed_to_make(vmi, str(error))

    async def _make_pod(
        self, vmi: VirtualMachineInstance, wanted: dict[str, Any]
    ) -> tuple[Pod | None, Problem | None]:
        """Neither a Pod nor a problem: it is new, and has yet to be seen."""
        try:
            await self._client.create(PODS, wanted, vmi.metadata.namespace, cls=bytes)
        except AlreadyExists:
            found = await self._look_for_pod(vmi)
            return found, None if found else self._failed_to_make(vmi, FOREIGN.format(pod=pod_name(vmi)))
        except (Forbidden, Invalid) as error:
            if error.namespace_ends:
                raise
            return None, self._failed_to_make(vmi, error.message)
        name = wanted["metadata"]["name"]
        self._recorder.event(vmi, "Normal", "SuccessfulCreate", f"Created virtual machine pod {name}")
        return None, None

    def _failed_to_make(self, vmi: VirtualMachineInstance, message: str) -> Problem:
        self._recorder.event(vmi, "Warning", FAILED_CREATE, f"Error creating pod: {message}")
        return Problem(FAILED_CREATE, f"The launcher Pod cannot be created: {message}")

    async def _volumes(
        self, vmi: VirtualMachineInstance
    ) -> tuple[VolumesView, dict[str, PersistentVolumeClaim]]:
        namespace = vmi.metadata.namespace
        wanted = {volume.claim_name for volume in vmi.spec.volumes if volume.claim_name}
        made = {name: dv for name in wanted if (dv := self._caches.data_volumes.get(namespace, name))}
        claims = {name: pvc for name in wanted if (pvc := self._caches.claims.get(namespace, name))}
        view = instance.volumes_view(vmi.spec.volumes, made, claims)
        if view.missing is not None and await self._any_exists(
            namespace, wanted - made.keys() - claims.keys()
        ):
            # Made a moment ago and not in the cache yet: its event brings us back.
            view = VolumesView(None, view.data_volumes, tuple(sorted(wanted - claims.keys())))
        return view, claims

    async def _any_exists(self, namespace: str, missing: Iterable[str]) -> bool:
        for name in missing:
            for resource in (DATAVOLUMES, PVCS):
                try:
                    await self._client.get(resource, name, namespace)
                except NotFound:
                    continue
                return True
        return False

    # Following it

    async def _observe(
        self, vmi: VirtualMachineInstance, pod: Pod | None, problem: Problem | None
    ) -> VirtualMachineInstance:
        """Write what the Pod and the volumes say into the VMI's status."""
        volumes, claims = await self._volumes(vmi)
        phase = instance.phase_of(vmi.status.phase, pod)
        handed_over = phase == SCHEDULED and vmi.status.phase in BEFORE_HANDOVER
        if handed_over and pod is not None:
            vmi = await self._label(vmi, pod)
        old = vmi.status
        new = instance.with_phase(old, phase, now())
        problem = problem or (
            volumes.missing if pod is None and phase == PENDING else instance.pod_problem(pod)
        )
        if problem is None and pod is not None and self._agents is not None and waits_for_agent(phase, old):
            problem = self._agents.problem(pod.spec.node_name)
        new = msgspec.structs.replace(
            new,
            conditions=tuple(
                instance.conditions_of(
                    old.conditions,
                    phase=phase,
                    pod=pod,
                    volumes=volumes,
                    problem=problem,
                    generation=vmi.metadata.generation,
                )
            ),
            volume_status=instance.volume_status(vmi, claims),
            virtual_machine_revision_name=old.virtual_machine_revision_name or _revision_of(vmi),
        )
        if pod is not None:
            new = _with_place(new, pod)
        if phase in FINAL_PHASES:
            # A change of size ends with the machine, and so does what was true of its guest.
            over = (*CONDITIONS, *instance.OF_A_GUEST)
            left = tuple(each for each in new.conditions if each.type not in over)
            new = msgspec.structs.replace(new, conditions=left)
        vmi = await write_status(self._client, self._caches.vmis, vmi, old, new)
        tell_if_missing(self._recorder, vmi, old, SYNCHRONIZED)
        if phase in FINAL_PHASES and old.phase not in FINAL_PHASES:
            self._tell_the_end(vmi, pod)
        if handed_over and pod is not None:
            self._recorder.event(
                vmi,
                "Normal",
                "SuccessfulHandOver",
                f"Pod {pod.metadata.name} was handed over to the node {pod.spec.node_name}",
            )
        return vmi

    def _tell_the_end(self, vmi: VirtualMachineInstance, pod: Pod | None) -> None:
        if vmi.status.phase == SUCCEEDED:
            self._recorder.event(vmi, "Normal", "Stopped", "The VirtualMachineInstance was shut down.")
        elif vmi.metadata.deleting:
            self._recorder.event(vmi, "Normal", "Stopped", "The VirtualMachineInstance was stopped by force.")
        else:
            message = f"The VirtualMachineInstance failed. {instance.last_words(pod)}"
            self._recorder.event(vmi, "Warning", "Stopped", message)

    async def _label(self, vmi: VirtualMachineInstance, pod: Pod) -> VirtualMachineInstance:
        """The node agent finds its VMIs by this label: it stands before the phase that calls the agent."""
        if vmi.metadata.labels.get(names.LABEL_NODE_NAME) == pod.spec.node_name:
            return vmi
        return await write(
            self._client,
            self._caches.vmis,
            vmi,
            {"metadata": {"labels": {names.LABEL_NODE_NAME: pod.spec.node_name}}},
        )

    async def _open_gate(self, vmi: VirtualMachineInstance, pod: Pod) -> None:
        """The Pod's readiness gate follows the guest: a paused guest answers nobody."""
        if vmi.status.phase != RUNNING or pod.metadata.deleting:
            return
        paused = is_true(vmi.status.conditions, PAUSED)
        status = FALSE if paused else TRUE
        gate = find(pod.status.conditions, UNPAUSED_GATE)
        if gate is not None and gate.status == status:
            return
        condition = Condition(
            type=UNPAUSED_GATE,
            status=status,
            reason="Paused" if paused else "NotPaused",
            message="the virtual machine is paused" if paused else "the virtual machine is not paused",
            last_transition_time=now(),
        )
        await self._client.patch(
            PODS,
            pod.metadata.name,
            {"status": {"conditions": [condition]}},
            pod.metadata.namespace,
            kind="strategic",
            subresource="status",
        )

    # Ending it

    async def _delete(self, vmi: VirtualMachineInstance, pod: Pod | None) -> None:
        if names.FINALIZER_VMI not in vmi.metadata.finalizers:
            return
        if pod is None:
            await remove_finalizer(self._client, self._caches.vmis, vmi, names.FINALIZER_VMI)
            return
        vmi = await self._observe(vmi, pod, None)
        grace = pod_grace_period(vmi.spec)
        left = pod.metadata.deletion_grace_period_seconds
        if pod.metadata.deleting and (left is None or left <= grace):
            return
        try:
            await self._client.delete(
                PODS, pod.metadata.name, pod.metadata.namespace, grace=grace, uid=pod.metadata.uid
            )
        except NotFound:
            return
        except ApiError as error:
            self._recorder.event(
                vmi, "Warning", "FailedDelete", f"Error deleting pod {pod.metadata.name}: {error.message}"
            )
            raise
        if not pod.metadata.deleting:
            self._recorder.event(
                vmi, "Normal", "SuccessfulDelete", f"Deleted virtual machine pod {pod.metadata.name}"
            )


def _with_place(status: VMIStatus, pod: Pod) -> VMIStatus:
    return msgspec.structs.replace(
        status,
        node_name=status.node_name
        or (pod.spec.node_name if status.phase not in BEFORE_HANDOVER else status.node_name),
        active_pods={pod.metadata.uid: pod.spec.node_name},
        qos_class=pod.status.qos_class or status.qos_class,
        launcher_container_image_version=next(
            (each.image for each in pod.spec.containers if each.name == names.CONTAINER_COMPUTE), ""
        ),
    )


def _revision_of(vmi: VirtualMachineInstance) -> str:
    """The start revision of the VM that made this VMI."""
    owner = vmi.metadata.controller_of()
    generation = vmi.metadata.annotations.get(names.ANNOTATION_VM_GENERATION)
    if owner is None or owner.kind != VMS.kind or not generation:
        return ""
    return revision_name(owner.uid, generation)
