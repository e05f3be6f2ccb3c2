"""The volumes of a Pod on disk, in kubelet's layout, and the folder of links that each container sees.

pods/<uid>/volumes/kubernetes.io~empty-dir/<name>
pods/<uid>/volumes/kubernetes.io~secret/<name>          kubernetes.io~configmap/<name>
pods/<uid>/volumes/kubernetes.io~image/<name>           hard links: the Pod keeps its files if the image
goes pods/<uid>/volumes/kubernetes.io~local-volume/<name>    a link to the claim's folder or image file
pods/<uid>/rootfs/<container>/<mount path>              links to the above
"""

from __future__ import annotations

import base64
import binascii
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from hotvirt.api.pods import Container, Pod, PodVolume
from hotvirt.api.resources import CONFIGMAPS, PVCS, PVS, SECRETS
from hotvirt.embedded.images import ImageStore
from hotvirt.kube.client import Client
from hotvirt.kube.errors import NotFound

from .launch import container_root


class VolumeError(RuntimeError):
    """A volume is not there yet, or cannot be: the message is for a person. It is tried again."""


class Volumes:
    """Makes the volumes of one Pod. May be repeated: what is there is kept."""

    def __init__(self, client: Client, images: ImageStore, state_dir: Path, pod: Pod, folder: Path) -> None:
        self._client = client
        self._images = images
        self._claims = state_dir / "volumes"
        self._pod = pod
        self._folder = folder

    def missing_images(self) -> dict[str, str]:
        """Image volumes whose image is not here: reference by volume."""
        return {
            volume.name: volume.image.reference
            for volume in self._pod.spec.volumes
            if volume.image and self._images.resolve(volume.image.reference) is None
        }

    async def make(self) -> None:
        for volume in self._pod.spec.volumes:
            await self._make(volume)
        for container in (*self._pod.spec.init_containers, *self._pod.spec.containers):
            self._link(container)

    async def _make(self, volume: PodVolume) -> None:
        if volume.empty_dir is not None:
            self._place(volume).mkdir(mode=0o700, parents=True, exist_ok=True)
        elif volume.image is not None:
            self._make_image(volume)
        elif volume.secret is not None:
            source = volume.secret
            content = await self._content(SECRETS, source.secret_name, source.optional)
            files = {key: _decode(key, value) for key, value in (content.get("data") or {}).items()}
            self._write_files(volume, files, source.items, source.default_mode or 0o400, source.secret_name)
        elif volume.config_map is not None:
            config = volume.config_map
            content = await self._content(CONFIGMAPS, config.name, config.optional)
            files = {key: str(value).encode() for key, value in (content.get("data") or {}).items()}
            files |= {key: _decode(key, v) for key, v in (content.get("binaryData") or {}).items()}
            self._write_files(volume, files, config.items, config.default_mode or 0o644, config.name)
        elif volume.persistent_volume_claim is not None:
            await self._make_claim(volume, volume.persistent_volume_claim.claim_name)
        else:
            raise VolumeError(f"volume {volume.name!r} is of a kind that this node does not have")

    def _place(self, volume: PodVolume) -> Path:
        kinds = (
            (volume.empty_dir, "empty-dir"),
            (volume.image, "image"),
            (volume.secret, "secret"),
            (volume.config_map, "configmap"),
            (volume.persistent_volume_claim, "local-volume"),
        )
        kind = next(kind for source, kind in kinds if source is not None)
        return self._folder / "volumes" / f"kubernetes.io~{kind}" / volume.name

    def _make_image(self, volume: PodVolume) -> None:
        assert volume.image is not None
        place = self._place(volume)
        if place.exists():
            return
        rootfs = self._images.resolve(volume.image.reference)
        if rootfs is None:
            raise VolumeError(f"image {volume.image.reference!r} was removed")
        unfinished = place.with_name(f".{place.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            shutil.copytree(rootfs, unfinished, symlinks=True, copy_function=os.link)
        except shutil.Error as error:
            raise VolumeError(
                f"image {volume.image.reference!r} cannot be linked into the Pod: {error}"
            ) from error
        unfinished.rename(place)

    async def _content(self, resource: Any, name: str, optional: bool) -> dict[str, Any]:
        try:
            return await self._client.get(resource, name, self._pod.metadata.namespace)
        except NotFound:
            if optional:
                return {}
            raise VolumeError(f"{resource.singular} {name!r} not found") from None

    def _write_files(
        self,
        volume: PodVolume,
        files: dict[str, bytes],
        items: Iterable[dict[str, Any]],
        mode: int,
        name: str,
    ) -> None:
        place = self._place(volume)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        chosen = [(str(i["key"]), str(i["path"]), int(i.get("mode") or mode)) for i in items]
        for key, path, file_mode in chosen or [(key, key, mode) for key in files]:
            relative = PurePosixPath(path)
            if relative.is_absolute() or ".." in relative.parts:
                raise VolumeError(f"volume {volume.name!r}: path {path!r} leads out of it")
            if key not in files:
                raise VolumeError(f"volume {volume.name!r}: {name!r} has no key {key!r}")
            target = place / relative
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished = target.with_name(f".{target.name}.new")
            unfinished.unlink(missing_ok=True)
            unfinished.touch(mode=0o600)
            unfinished.write_bytes(files[key])
            unfinished.chmod(file_mode)
            unfinished.replace(target)

    async def _make_claim(self, volume: PodVolume, claim_name: str) -> None:
        try:
            claim = await self._client.get(PVCS, claim_name, self._pod.metadata.namespace)
        except NotFound:
            raise VolumeError(f"persistentvolumeclaim {claim_name!r} not found") from None
        if (claim.get("status") or {}).get("phase") != "Bound":
            raise VolumeError(f"persistentvolumeclaim {claim_name!r} is not bound yet")
        name = claim["spec"]["volumeName"]
        spec = (await self._client.get(PVS, name))["spec"]
        path = Path((spec.get("local") or spec.get("hostPath") or {}).get("path", "/"))
        # A claim's own content could not do this; a hand-made volume could: it would give a guest any file
        # of the host.
        if not path.resolve().is_relative_to(self._claims.resolve()):
            raise VolumeError(
                f"persistentvolume {name!r} lies outside of {self._claims}, which is not supported"
            )
        if not path.exists():
            raise VolumeError(f"persistentvolume {name!r} has lost its data: {path} is not there")
        place = self._place(volume)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_link(place, path)

    def _link(self, container: Container) -> None:
        root = container_root(self._folder, container.name)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        volumes = {volume.name: volume for volume in self._pod.spec.volumes}
        wanted = [(mount.name, mount.mount_path) for mount in container.volume_mounts]
        wanted += [(device.name, device.device_path) for device in container.volume_devices]
        for name, path in wanted:
            relative = PurePosixPath(path.lstrip("/"))
            if name not in volumes:
                raise VolumeError(f"container {container.name}: there is no volume {name!r}")
            if not relative.parts or ".." in relative.parts:
                raise VolumeError(f"container {container.name}: mount path {path!r} is not supported")
            link = root / relative
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not link.parent.resolve().is_relative_to(root.resolve()):
                raise VolumeError(f"container {container.name}: {path} lies in another volume, not supported")
            _make_link(link, self._place(volumes[name]))


def _make_link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _decode(key: str, value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise VolumeError(f"key {key!r} is not valid base64: {error}") from error
