"""The KubeVirt object: its status says which version of Hotvirt is here, and which nodes it cannot serve."""

from __future__ import annotations

import platform
from typing import Final

import msgspec

from hotvirt import __version__
from hotvirt.api import names
from hotvirt.api.conditions import set_condition
from hotvirt.kube.client import Client
from hotvirt.kube.informer import Key
from hotvirt.plan import agents

from .agents import Agents
from .caches import ON_NODE, Caches
from .writes import write_status

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
KEY: Final = (names.NAMESPACE, names.KUBEVIRT_NAME)


class KubeVirtReconciler:
    def __init__(self, client: Client, caches: Caches, followed: Agents | None = None) -> None:
        """`followed`: the node agents, where they are processes of their own."""
        self._client = client
        self._caches = caches
        self._agents = followed

    async def reconcile(self, key: Key) -> None:
        if key != KEY:
            return
        kubevirt = self._caches.kubevirts.get(*key)
        if kubevirt is None or kubevirt.metadata.deleting:
            return
        version = f"v{__version__}"
        somewhere = self._agents is None or self._agents.any_lives()
        conditions = list(kubevirt.status.conditions)
        for condition in agents.of_the_cluster(somewhere, self._left_alone()):
            conditions = set_condition(conditions, condition)
        new = msgspec.structs.replace(
            kubevirt.status,
            phase="Deployed" if somewhere else "Deploying",
            conditions=tuple(conditions),
            observed_generation=kubevirt.metadata.generation,
            operator_version=version,
            observed_kube_virt_version=version,
            target_kube_virt_version=version,
            default_architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
        )
        await write_status(self._client, self._caches.kubevirts, kubevirt, kubevirt.status, new)

    def _left_alone(self) -> list[str]:
        """Nodes with machines and without an agent."""
        if self._agents is None:
            return []
        return [node for node in self._caches.vmis.values(ON_NODE) if self._agents.problem(node)]
