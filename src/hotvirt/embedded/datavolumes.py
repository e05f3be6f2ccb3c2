"""Blank DataVolumes, as CDI makes them: a claim of the same name, with an empty disk in it.

The disk itself is made by the StorageClass. Every other source is kept and refused with a sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from hotvirt.api import codec
from hotvirt.api.cdi import DataVolume
from hotvirt.api.conditions import Condition, set_condition
from hotvirt.api.core import PersistentVolumeClaim
from hotvirt.api.meta import owner_reference
from hotvirt.api.resources import DATAVOLUMES, PVCS
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informers, Key

CONTENT_TYPE = "cdi.kubevirt.io/storage.contentType"
PENDING, SUCCEEDED = "Pending", "Succeeded"
RETRY_CREATE = 10.0
"""That a claim which was refused (a quota, say) would be allowed now has no event here."""


class DataVolumeController:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._recorder = Recorder(client, "datavolume-controller")
        self._informers = Informers(client)
        self._volumes = self._informers.of(DATAVOLUMES, DataVolume)
        self._claims = self._informers.of(PVCS, PersistentVolumeClaim)
        self._controller = Controller("datavolumes", self._reconcile, workers=2)
        self._controller.watch(self._volumes, lambda volume: [volume.metadata.key])
        self._controller.watch(self._claims, self._volume_of)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._informers.run(), name="DataVolume caches")
                tasks.create_task(self._controller.run(), name="DataVolumes")
        finally:
            await self._recorder.close()

    async def synced(self) -> None:
        await self._informers.synced()

    def _volume_of(self, claim: PersistentVolumeClaim) -> Iterable[Key]:
        """A claim that blocks the name counts too: when it goes, the DataVolume can have it."""
        if self._volumes.get(*claim.metadata.key):
            yield claim.metadata.key

    async def _reconcile(self, key: Key) -> float | None:
        volume = self._volumes.get(*key)
        if volume is None or volume.metadata.deleting or volume.status.phase == SUCCEEDED:
            return None
        if why := _unsupported(volume):
            await self._wait(volume, "NotSupported", why)
            return None
        claim = self._claims.get(*key)
        if claim is None:
            try:
                claim = await self._make_claim(volume)
            except AlreadyExists:
                return None  # the news of it is on its way
            except (Forbidden, Invalid) as refusal:
                await self._wait(volume, "ErrClaimNotValid", f"The claim was refused: {refusal}")
                return RETRY_CREATE
        if not _owns(volume, claim):
            text = f'Resource "{claim.metadata.name}" already exists and is not managed by DataVolume'
            await self._wait(volume, "ErrResourceExists", text)
        elif claim.status.phase != "Bound":
            await self._wait(volume, "Pending", f"PVC {claim.metadata.name} Pending", event=False)
        else:
            await self._succeed(volume, claim)
        return None

    async def _make_claim(self, volume: DataVolume) -> PersistentVolumeClaim:
        wanted = volume.spec.claim
        assert wanted is not None
        spec: dict[str, Any] = codec.builtins(wanted)
        spec.setdefault("accessModes", ["ReadWriteOnce"])
        spec.setdefault("volumeMode", "Filesystem")
        namespace, name = volume.metadata.key
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "labels": {**volume.metadata.labels, "app": "containerized-data-importer"},
                "annotations": {CONTENT_TYPE: volume.spec.content_type or "kubevirt"},
                "ownerReferences": [owner_reference(volume)],
            },
            "spec": spec,
        }
        return await self._client.create(PVCS, claim, namespace, cls=PersistentVolumeClaim)

    async def _wait(self, volume: DataVolume, reason: str, message: str, *, event: bool = True) -> None:
        bound = Condition(type="Bound", status="False", reason=reason, message=message)
        ready = Condition(type="Ready", status="False", reason=reason, message=message)
        running = Condition(type="Running", status="False", reason=reason)
        changed = await self._write(volume, {"phase": PENDING}, [bound, ready, running])
        if changed and event:
            self._recorder.event(volume, "Warning", reason, message)

    async def _succeed(self, volume: DataVolume, claim: PersistentVolumeClaim) -> None:
        name = claim.metadata.name
        bound = Condition(type="Bound", status="True", reason="Bound", message=f"PVC {name} Bound")
        ready = Condition(type="Ready", status="True")
        running = Condition(type="Running", status="False", reason="Completed", message="Import Complete")
        status = {"phase": SUCCEEDED, "progress": "100.0%", "claimName": name}
        if await self._write(volume, status, [bound, ready, running]):
            self._recorder.event(
                volume, "Normal", "ImportSucceeded", f"Successfully imported into PVC {name}"
            )

    async def _write(self, volume: DataVolume, status: dict[str, Any], news: list[Condition]) -> bool:
        conditions = list(volume.status.conditions)
        for condition in news:
            conditions = set_condition(conditions, condition)
        old: dict[str, Any] = codec.builtins(volume.status)
        new = status | {"conditions": [codec.builtins(condition) for condition in conditions]}
        if all(old.get(name) == value for name, value in new.items()):
            return False
        guard = {"uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version}
        namespace, name = volume.metadata.key
        patch = {"metadata": guard, "status": new}
        try:
            await self._client.patch(DATAVOLUMES, name, patch, namespace, subresource="status")
        except NotFound:
            return False
        return True


def _unsupported(volume: DataVolume) -> str:
    source = volume.spec.source
    if volume.spec.source_ref:
        return "spec.sourceRef is not supported yet: only blank DataVolumes (spec.source.blank) can be made."
    if source is None or source.blank is None:
        given: dict[str, Any] = codec.builtins(source) if source else {}
        kind = next(iter(given), "")
        what = f"spec.source.{kind} is" if kind else "A DataVolume without spec.source is"
        return f"{what} not supported yet: only blank DataVolumes (spec.source.blank) can be made."
    if volume.spec.claim is None:
        return "The DataVolume says nothing about its claim: set spec.storage or spec.pvc."
    return ""


def _owns(volume: DataVolume, claim: PersistentVolumeClaim) -> bool:
    return any(owner.uid == volume.metadata.uid for owner in claim.metadata.owner_references)
