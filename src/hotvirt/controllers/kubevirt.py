"""The KubeVirt object: its status says that Hotvirt serves this cluster, and in which version."""

from __future__ import annotations

import platform
from typing import Final

import msgspec

from hotvirt import __version__
from hotvirt.api import names
from hotvirt.api.conditions import FALSE, TRUE, Condition, set_condition
from hotvirt.kube.client import Client
from hotvirt.kube.informer import Key

from .caches import Caches
from .writes import write_status

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
CONDITIONS: Final = (
    Condition(type="Available", status=TRUE, reason="AllComponentsReady", message="Hotvirt is ready."),
    Condition(
        type="Progressing", status=FALSE, reason="AllComponentsReady", message="Nothing is being rolled out."
    ),
    Condition(type="Degraded", status=FALSE, reason="AllComponentsReady", message="Nothing is wrong."),
)


class KubeVirtReconciler:
    def __init__(self, client: Client, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def reconcile(self, key: Key) -> None:
        if key != (names.NAMESPACE, names.KUBEVIRT_NAME):
            return
        kubevirt = self._caches.kubevirts.get(*key)
        if kubevirt is None or kubevirt.metadata.deleting:
            return
        version = f"v{__version__}"
        conditions = list(kubevirt.status.conditions)
        for condition in CONDITIONS:
            conditions = set_condition(conditions, condition)
        new = msgspec.structs.replace(
            kubevirt.status,
            phase="Deployed",
            conditions=tuple(conditions),
            observed_generation=kubevirt.metadata.generation,
            operator_version=version,
            observed_kube_virt_version=version,
            target_kube_virt_version=version,
            default_architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
        )
        await write_status(self._client, self._caches.kubevirts, kubevirt, kubevirt.status, new)
