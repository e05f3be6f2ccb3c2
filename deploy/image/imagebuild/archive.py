"""An OCI image layout in one tar, which `ctr images import`, `podman load`, `docker load` and `skopeo` read.

Layers are not compressed: the same files then give the same digests with every zlib, and what pushes to a
registry compresses them on the way.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
# What a container runtime makes of a name without a registry.
DEFAULT_REGISTRY = "docker.io"


@dataclass(frozen=True)
class Blob:
    """A layer that was written: where, its SHA-256 and its size, and what it is for the image's history."""

    file: Path
    digest: str
    size: int
    title: str


@dataclass(frozen=True)
class Image:
    """An image's names (`hotvirt/launcher:1.0`, the first is the main one) and how it starts."""

    names: tuple[str, ...]
    layers: tuple[Blob, ...]
    entrypoint: tuple[str, ...] = ()
    user: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def write_blob(content: bytes, file: Path, title: str) -> Blob:
    file.write_bytes(content)
    return Blob(file, hashlib.sha256(content).hexdigest(), len(content), title)


def write(image: Image, target: Path, epoch: int) -> str:
    """Write the archive; the digest of the image's manifest."""
    config = _json(_config(image, epoch))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(CONFIG_TYPE, config),
            "layers": [
                {"mediaType": LAYER_TYPE, "digest": f"sha256:{layer.digest}", "size": layer.size}
                for layer in image.layers
            ],
        }
    )
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": _index(image, manifest)}
    # Only `docker load` before version 25 reads this one.
    docker = {
        "Config": _path(_sha(config)),
        "RepoTags": list(image.names),
        "Layers": [_path(layer.digest) for layer in image.layers],
    }
    small = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        "manifest.json": _json([docker]),
        _path(_sha(config)): config,
        _path(_sha(manifest)): manifest,
    }
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in small.items():
            archive.addfile(_member(name, len(content), epoch), io.BytesIO(content))
        for layer in {layer.digest: layer for layer in image.layers}.values():
            with layer.file.open("rb") as source:
                archive.addfile(_member(_path(layer.digest), layer.size, epoch), source)
    return f"sha256:{_sha(manifest)}"


def _config(image: Image, epoch: int) -> dict[str, Any]:
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    settings = {
        "User": image.user,
        "Env": [f"{name}={value}" for name, value in sorted(image.environment.items())],
        "Entrypoint": list(image.entrypoint),
        "WorkingDir": "/",
        "Labels": dict(sorted(image.labels.items())),
    }
    return {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {name: value for name, value in settings.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in image.layers]},
        "history": [{"created": created, "created_by": layer.title} for layer in image.layers],
    }


def _index(image: Image, manifest: bytes) -> list[dict[str, Any]]:
    platform = {"architecture": "amd64", "os": "linux"}
    return [
        _descriptor(MANIFEST_TYPE, manifest)
        | {
            "platform": platform,
            "annotations": {
                "io.containerd.image.name": f"{DEFAULT_REGISTRY}/{name}",
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }
        for name in image.names
    ]


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{_sha(content)}", "size": len(content)}


def _member(name: str, size: int, epoch: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, epoch, 0o644
    return member


def _path(digest: str) -> str:
    return f"blobs/sha256/{digest}"


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
