"""Binds pending Pods to nodes, by what they request against what nodes offer, with kube-scheduler's words.

One Pod at a time, so that two never get the same room. A Pod that fits nowhere waits until something
changes that could make room: a Pod that goes or shrinks, a node that changes, a claim that is bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from hotvirt.api import meta
from hotvirt.api.conditions import find, is_true
from hotvirt.api.core import Node, PersistentVolume, PersistentVolumeClaim
from hotvirt.api.pods import Pod
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import NODES, PODS, PVCS, PVS
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.errors import Conflict, NotFound
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informers, Key

from .affinity import matches_node_terms, tolerates
from .node.sizes import ZERO, Amounts, Ledger, held_requests, pod_requests

log = logging.getLogger(__name__)
NAME = "default-scheduler"
ENDED = ("Succeeded", "Failed")
Filter = Callable[[Pod, Node], str]
"""Why the Pod cannot be on the node; empty when it can."""


class Scheduler:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._recorder = Recorder(client, NAME)
        self._informers = Informers(client)
        self._pods = self._informers.of(PODS, Pod)
        self._nodes = self._informers.of(NODES, Node)
        self._claims = self._informers.of(PVCS, PersistentVolumeClaim)
        self._volumes = self._informers.of(PVS, PersistentVolume)
        self._ledgers: dict[str, Ledger] = defaultdict(Ledger)
        """What is bound to each node, by its name."""
        self._assumed: dict[str, str] = {}
        """Bound by us, not seen bound yet: the node by the Pod's uid."""
        self._waiting: set[Key] = set()
        self._controller = Controller("scheduler", self._reconcile, workers=1)
        self._controller.watch(self._pods, self._pending)
        self._pods.add_handler(self._pod_changed)
        for informer in (self._nodes, self._claims, self._volumes):
            informer.add_handler(lambda _old, _new: self._retry_waiting())

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._informers.run(), name="scheduler's caches")
                tasks.create_task(self._controller.run(), name="scheduler")
        finally:
            await self._recorder.close()

    async def synced(self) -> None:
        await self._informers.synced()

    @staticmethod
    def _pending(pod: Pod) -> Iterable[Key]:
        if _is_pending(pod):
            yield pod.metadata.key

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        room = False
        if old and (new is None or new.metadata.uid != old.metadata.uid):
            node = self._assumed.pop(old.metadata.uid, old.spec.node_name)
            self._waiting.discard(old.metadata.key)
            self._ledgers[node].book(old.metadata.uid, None)
            room = True
        if new and new.spec.node_name:
            self._assumed.pop(new.metadata.uid, None)
            held = None if new.status.phase in ENDED else held_requests(new)
            room = self._ledgers[new.spec.node_name].book(new.metadata.uid, held) or room
        if room:
            self._retry_waiting()

    def _retry_waiting(self) -> None:
        for key in list(self._waiting):
            self._controller.queue.add(key)

    async def _reconcile(self, key: Key) -> float | None:
        pod = self._pods.get(*key)
        self._waiting.discard(key)
        if pod is None or not _is_pending(pod) or pod.metadata.uid in self._assumed:
            return None
        nodes = self._nodes.list()
        problem = self._unbound_claims(pod)
        reasons: Counter[str] = Counter()
        fitting = []
        for node in nodes if not problem else ():
            why = self._why_not(pod, node)
            if why:
                reasons.update(why)
            else:
                fitting.append(node)
        if fitting:
            await self._bind(pod, max(fitting, key=self._free_share))
        else:
            self._waiting.add(key)
            await self._explain(pod, _message(len(nodes), problem, reasons))
        return None

    # Does it fit?

    def _why_not(self, pod: Pod, node: Node) -> list[str]:
        for check in (self._unschedulable, self._taints, self._affinity, self._volume_affinity):
            if why := check(pod, node):
                return [why]
        return self._insufficient(pod, node)

    @staticmethod
    def _unschedulable(pod: Pod, node: Node) -> str:
        return "node(s) were unschedulable" if node.spec.unschedulable else ""

    @staticmethod
    def _taints(pod: Pod, node: Node) -> str:
        taints = [(t.key, t.value, t.effect) for t in node.spec.taints]
        if not is_true(node.status.conditions, "Ready"):
            taints.append(("node.kubernetes.io/not-ready", "", "NoSchedule"))
        for key, value, effect in taints:
            if effect in ("NoSchedule", "NoExecute") and not tolerates(
                pod.spec.tolerations, key, value, effect
            ):
                return f"node(s) had untolerated taint {{{key}: {value}}}"
        return ""

    @staticmethod
    def _affinity(pod: Pod, node: Node) -> str:
        labels = node.metadata.labels
        wanted = pod.spec.node_selector.items()
        required = ((pod.spec.affinity or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
        if not wanted <= labels.items() or not matches_node_terms(required, labels, node.metadata.name):
            return "node(s) didn't match Pod's node affinity/selector"
        return ""

    def _volume_affinity(self, pod: Pod, node: Node) -> str:
        for claim in self._claims_of(pod):
            volume = self._volumes.get(None, claim.spec.volume_name) if claim else None
            required = ((volume and volume.spec.node_affinity) or {}).get("required")
            if not matches_node_terms(required, node.metadata.labels, node.metadata.name):
                return "node(s) didn't match PersistentVolume's node affinity"
        return ""

    def _insufficient(self, pod: Pod, node: Node) -> list[str]:
        free = self._free(node)
        reasons = []
        if free.get("pods", ZERO).value < 1:
            reasons.append("Too many pods")
        for name, wanted in pod_requests(pod.spec).items():
            if wanted and wanted > free.get(name, ZERO):
                reasons.append(f"Insufficient {name}")
        return reasons

    def _free(self, node: Node) -> Amounts:
        ledger = self._ledgers[node.metadata.name]
        used, offered = ledger.total(), node.status.allocatable
        free = {name: amount - used.get(name, ZERO) for name, amount in offered.items()}
        if "pods" in free:
            free["pods"] = Quantity(offered["pods"].value - len(ledger))
        return free

    def _free_share(self, node: Node) -> float:
        """The emptiest node is the best one."""
        free, offered = self._free(node), node.status.allocatable
        shares = [free[name].milli / offered[name].milli for name in ("cpu", "memory") if offered.get(name)]
        return sum(shares)

    def _claims_of(self, pod: Pod) -> list[PersistentVolumeClaim | None]:
        names = [v.persistent_volume_claim.claim_name for v in pod.spec.volumes if v.persistent_volume_claim]
        return [self._claims.get(pod.metadata.namespace, name) for name in names]

    def _unbound_claims(self, pod: Pod) -> str:
        for volume in pod.spec.volumes:
            if volume.persistent_volume_claim is None:
                continue
            name = volume.persistent_volume_claim.claim_name
            claim = self._claims.get(pod.metadata.namespace, name)
            if claim is None:
                return f'persistentvolumeclaim "{name}" not found'
            if claim.metadata.deleting:
                return f'persistentvolumeclaim "{name}" is being deleted'
            if claim.status.phase != "Bound":
                return "pod has unbound immediate PersistentVolumeClaims"
        return ""

    # Saying so

    async def _bind(self, pod: Pod, node: Node) -> None:
        ledger = self._ledgers[node.metadata.name]
        self._assumed[pod.metadata.uid] = node.metadata.name
        ledger.book(pod.metadata.uid, held_requests(pod))
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.metadata.name, "uid": pod.metadata.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name},
        }
        namespace, name = pod.metadata.key
        try:
            await self._client.create(PODS, binding, namespace, name=name, subresource="binding")
        except BaseException as error:
            if self._assumed.pop(pod.metadata.uid, None):
                ledger.book(pod.metadata.uid, None)
            if isinstance(error, NotFound | Conflict):
                return  # gone, or bound or deleted meanwhile: the news is on its way
            raise
        message = f"Successfully assigned {namespace}/{name} to {node.metadata.name}"
        self._recorder.event(pod, "Normal", "Scheduled", message)

    async def _explain(self, pod: Pod, message: str) -> None:
        old = find(pod.status.conditions, "PodScheduled")
        if old and (old.status, old.reason, old.message) == ("False", "Unschedulable", message):
            return
        self._recorder.event(pod, "Warning", "FailedScheduling", message)
        condition: dict[str, Any] = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": (old and old.status == "False" and old.last_transition_time) or meta.now(),
            "observedGeneration": pod.metadata.generation,
        }
        # Strategic: merged by type into whatever conditions others have set meanwhile.
        patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}
        namespace, name = pod.metadata.key
        try:
            await self._client.patch(PODS, name, patch, namespace, kind="strategic", subresource="status")
        except (NotFound, Conflict):
            return


def _is_pending(pod: Pod) -> bool:
    return (
        not pod.spec.node_name
        and not pod.metadata.deleting
        and pod.status.phase in ("", "Pending")
        and pod.spec.scheduler_name in ("", NAME)
    )


def _message(nodes: int, problem: str, reasons: Counter[str]) -> str:
    if not nodes:
        return "no nodes available to schedule pods"
    if problem:
        return f"0/{nodes} nodes are available: {problem}."
    listed = sorted(f"{count} {reason}" for reason, count in reasons.items())
    return f"0/{nodes} nodes are available: {', '.join(listed)}."
