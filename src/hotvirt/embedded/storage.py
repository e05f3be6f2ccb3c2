"""The StorageClass `local`: a claim is a folder of this machine, with a sparse raw image in it.

    volumes/<volume>/disk.img     the image: in a folder for Filesystem claims, by itself for Block claims

A volume has the name that follows from its claim's uid, so that a provisioning that was cut short is
finished, not begun again. A claim in use by a Pod is not deleted under it; with the claim goes its volume
and then the data.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hotvirt.api import codec
from hotvirt.api.core import PersistentVolume, PersistentVolumeClaim, StorageClass
from hotvirt.api.pods import Pod
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import PODS, PVCS, PVS, STORAGECLASSES
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.errors import AlreadyExists, NotFound
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informers, Key

log = logging.getLogger(__name__)
CLASS = "local"
PROVISIONER = "hotvirt.io/local"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"
ENDED = ("Succeeded", "Failed")
BY_CLAIM = "claim"
LOOK_AT_DISK = 30.0
"""That a disk has room again has no event."""
NEWS_WITHIN = 1.0
"""A Pod that the API has and the cache has not yet: look again, should its news never come."""


class LocalStorage:
    def __init__(self, client: Client, state_dir: Path, node_name: str) -> None:
        self._client = client
        self._folder = state_dir / "volumes"
        self._node_name = node_name
        self._recorder = Recorder(client, PROVISIONER)
        self._informers = Informers(client)
        self._claims = self._informers.of(PVCS, PersistentVolumeClaim)
        self._volumes = self._informers.of(PVS, PersistentVolume)
        self._classes = self._informers.of(STORAGECLASSES, StorageClass)
        self._pods = self._informers.of(PODS, Pod, indexes={BY_CLAIM: _claims_of})
        self._claim_controller = Controller("claims", self._reconcile_claim, workers=4)
        self._claim_controller.watch(self._claims, lambda claim: [claim.metadata.key])
        self._claim_controller.watch(self._volumes, _claim_of_volume)
        self._claim_controller.watch(self._pods, _claim_keys)
        self._volume_controller = Controller("volumes", self._reconcile_volume, workers=2)
        self._volume_controller.watch(self._volumes, lambda volume: [("", volume.metadata.name)])
        self._volume_controller.watch(
            self._claims, lambda claim: [("", c)] if (c := _volume_of(claim)) else []
        )

    async def run(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._informers.run(), name="storage caches")
                await self._informers.synced()
                await self._make_class()
                self._sweep()
                tasks.create_task(self._claim_controller.run(), name="claims")
                tasks.create_task(self._volume_controller.run(), name="volumes")
        finally:
            await self._recorder.close()

    async def synced(self) -> None:
        await self._informers.synced()

    async def _make_class(self) -> None:
        """Once; whoever deletes it, or makes another one the default, has meant it."""
        has_default = any(c.metadata.annotations.get(DEFAULT_CLASS) == "true" for c in self._classes.list())
        content = {
            "apiVersion": STORAGECLASSES.api_version,
            "kind": STORAGECLASSES.kind,
            "metadata": {"name": CLASS, "annotations": {DEFAULT_CLASS: "false" if has_default else "true"}},
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
            "allowVolumeExpansion": False,
        }
        try:
            await self._client.create(STORAGECLASSES, content)
        except AlreadyExists:
            log.debug("StorageClass %s is there", CLASS)

    def _sweep(self) -> None:
        """Data whose claim went while it was being made."""
        known = {volume.metadata.name for volume in self._volumes.list()}
        known |= {_volume_name(claim) for claim in self._claims.list()}
        for folder in self._folder.iterdir():
            if folder.name not in known:
                log.info("removing %s, which no claim has", folder)
                shutil.rmtree(folder, ignore_errors=True)

    # Claims

    async def _reconcile_claim(self, key: Key) -> float | None:
        claim = self._claims.get(*key)
        if claim is None:
            return None
        if claim.metadata.deleting:
            return await self._let_go(claim)
        if CLAIM_FINALIZER not in claim.metadata.finalizers:
            finalizers = [*claim.metadata.finalizers, CLAIM_FINALIZER]
            claim = await self._patch_claim(claim, {"metadata": {"finalizers": finalizers}})
        if claim.status.phase == "Bound" or not self._is_ours(claim):
            return None
        volume = self._volumes.get(None, claim.spec.volume_name or _volume_name(claim))
        if volume is None:
            if claim.spec.volume_name and claim.spec.volume_name != _volume_name(claim):
                return None  # it names a volume that is not there (yet)
            return await self._provision(claim)
        await self._bind(claim, volume)
        return None

    def _is_ours(self, claim: PersistentVolumeClaim) -> bool:
        chosen = self._classes.get(None, claim.spec.storage_class_name or "")
        return claim.spec.volume_name != "" or (chosen is not None and chosen.provisioner == PROVISIONER)

    async def _let_go(self, claim: PersistentVolumeClaim) -> float | None:
        if CLAIM_FINALIZER not in claim.metadata.finalizers:
            return None
        if _any_uses(claim, self._pods.by_index(BY_CLAIM, "/".join(claim.metadata.key))):
            return None
        # Data depends on the answer: the cache may say yes, only the API may say no.
        if _any_uses(claim, (await self._client.list(PODS, claim.metadata.namespace, cls=Pod)).items):
            return NEWS_WITHIN
        kept = [finalizer for finalizer in claim.metadata.finalizers if finalizer != CLAIM_FINALIZER]
        try:
            await self._patch_claim(claim, {"metadata": {"finalizers": kept or None}})
        except NotFound:
            log.debug("claim %s/%s is gone already", *claim.metadata.key)
        return None

    async def _provision(self, claim: PersistentVolumeClaim) -> float | None:
        requests = claim.spec.resources.requests if claim.spec.resources else {}
        size = requests.get("storage", Quantity(0))
        problem = self._why_not(claim, size)
        if problem:
            self._recorder.event(claim, "Warning", "ProvisioningFailed", problem)
            return LOOK_AT_DISK
        name = _volume_name(claim)
        path = await asyncio.to_thread(self._make_disk, name, size.value, claim.spec.volume_mode == "Block")
        volume = self._volume(claim, name, size, path)
        try:
            created = await self._client.create(PVS, volume, cls=PersistentVolume)
        except AlreadyExists:
            return None  # an earlier try got that far; the news of it is on its way
        message = f"Successfully provisioned volume {name}"
        self._recorder.event(claim, "Normal", "ProvisioningSucceeded", message)
        await self._bind(claim, created)
        return None

    def _why_not(self, claim: PersistentVolumeClaim, size: Quantity) -> str:
        if size.value <= 0:
            return "the claim requests no storage: set spec.resources.requests.storage"
        if claim.spec.selector:
            return "claim.spec.selector is not supported by the StorageClass local"
        if claim.spec.data_source or claim.spec.data_source_ref:
            return "claim.spec.dataSource is not supported by the StorageClass local"
        free = shutil.disk_usage(self._folder).free
        if size.value > free:
            return (
                f"the claim requests {size}, and {self._folder} has {Quantity.bytes(free >> 20 << 20)} free: "
                "free some space; it is tried again"
            )
        return ""

    def _make_disk(self, name: str, size: int, block: bool) -> Path:
        folder = self._folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        image = folder / "disk.img"
        if not image.exists():
            unfinished = folder / ".disk.img"
            descriptor = os.open(unfinished, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.truncate(descriptor, size)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            unfinished.rename(image)
        return image if block else folder

    def _volume(self, claim: PersistentVolumeClaim, name: str, size: Quantity, path: Path) -> dict[str, Any]:
        chosen = self._classes.get(None, claim.spec.storage_class_name or "")
        hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [self._node_name]}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": name,
                "annotations": {PROVISIONED_BY: PROVISIONER},
                "finalizers": [VOLUME_FINALIZER],
            },
            "spec": {
                "capacity": {"storage": str(size)},
                "accessModes": list(claim.spec.access_modes),
                "persistentVolumeReclaimPolicy": chosen.reclaim_policy if chosen else "Delete",
                "storageClassName": claim.spec.storage_class_name or "",
                "volumeMode": claim.spec.volume_mode or "Filesystem",
                "local": {"path": str(path)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
                "claimRef": _claim_reference(claim),
            },
        }

    async def _bind(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        holder = volume.spec.claim_ref
        if holder and (holder.namespace, holder.name) != claim.metadata.key:
            message = f'volume "{volume.metadata.name}" already bound to a different claim.'
            self._recorder.event(claim, "Warning", "FailedBinding", message)
            return
        if holder and holder.uid and holder.uid != claim.metadata.uid:
            return
        name = volume.metadata.name
        if holder is None or not holder.uid:
            await self._client.patch(PVS, name, {"spec": {"claimRef": _claim_reference(claim)}})
        if volume.status.phase != "Bound":
            await self._client.patch(PVS, name, {"status": {"phase": "Bound"}}, subresource="status")
        if claim.spec.volume_name != name or BIND_COMPLETED not in claim.metadata.annotations:
            annotations = {BIND_COMPLETED: "yes"}
            patch = {"metadata": {"annotations": annotations}, "spec": {"volumeName": name}}
            claim = await self._patch_claim(claim, patch)
        status = {
            "phase": "Bound",
            "accessModes": list(volume.spec.access_modes),
            "capacity": codec.builtins(volume.spec.capacity),
        }
        await self._patch_claim(claim, {"status": status}, subresource="status")

    async def _patch_claim(
        self, claim: PersistentVolumeClaim, patch: dict[str, Any], subresource: str | None = None
    ) -> PersistentVolumeClaim:
        guard = {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}
        patch = patch | {"metadata": patch.get("metadata", {}) | guard}
        namespace, name = claim.metadata.key
        return await self._client.patch(
            PVCS, name, patch, namespace, subresource=subresource, cls=PersistentVolumeClaim
        )

    # Volumes

    async def _reconcile_volume(self, key: Key) -> float | None:
        volume = self._volumes.get(None, key[1])
        if volume is None:
            return None
        holder = volume.spec.claim_ref
        if holder is None or not holder.uid:
            if not volume.status.phase:
                await self._set_phase(volume, "Available")
            return None
        if await self._claim_exists(holder.namespace, holder.name, holder.uid):
            return None
        ours = volume.metadata.annotations.get(PROVISIONED_BY) == PROVISIONER
        if ours and volume.spec.persistent_volume_reclaim_policy == "Delete":
            await self._destroy(volume)
        elif volume.status.phase != "Released":
            await self._set_phase(volume, "Released")
        return None

    async def _claim_exists(self, namespace: str, name: str, uid: str) -> bool:
        """Data depends on the answer: the cache may say yes, only the API may say no."""
        cached = self._claims.get(namespace, name)
        if cached and cached.metadata.uid == uid:
            return True
        try:
            claim = await self._client.get(PVCS, name, namespace, cls=PersistentVolumeClaim)
        except NotFound:
            return False
        return claim.metadata.uid == uid

    async def _destroy(self, volume: PersistentVolume) -> None:
        name = volume.metadata.name
        if not volume.metadata.deleting:
            await self._client.delete(PVS, name, uid=volume.metadata.uid)
        await asyncio.to_thread(shutil.rmtree, self._folder / name, True)
        kept = [finalizer for finalizer in volume.metadata.finalizers if finalizer != VOLUME_FINALIZER]
        try:
            await self._client.patch(PVS, name, {"metadata": {"finalizers": kept or None}})
        except NotFound:
            return

    async def _set_phase(self, volume: PersistentVolume, phase: str) -> None:
        try:
            patch = {"status": {"phase": phase}}
            await self._client.patch(PVS, volume.metadata.name, patch, subresource="status")
        except NotFound:
            return


def _volume_name(claim: PersistentVolumeClaim) -> str:
    return f"pvc-{claim.metadata.uid}"


def _volume_of(claim: PersistentVolumeClaim) -> str:
    return claim.spec.volume_name or _volume_name(claim)


def _claim_of_volume(volume: PersistentVolume) -> Iterable[Key]:
    if holder := volume.spec.claim_ref:
        yield holder.namespace, holder.name


def _claim_keys(pod: Pod) -> Iterable[Key]:
    return [(pod.metadata.namespace, path.partition("/")[2]) for path in _claims_of(pod)]


def _claims_of(pod: Pod) -> list[str]:
    claims = [v.persistent_volume_claim.claim_name for v in pod.spec.volumes if v.persistent_volume_claim]
    return [f"{pod.metadata.namespace}/{name}" for name in claims]


def _any_uses(claim: PersistentVolumeClaim, pods: Iterable[Pod]) -> bool:
    key = "/".join(claim.metadata.key)
    return any(key in _claims_of(pod) and pod.status.phase not in ENDED for pod in pods)


def _claim_reference(claim: PersistentVolumeClaim) -> dict[str, str]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.metadata.namespace,
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
    }
