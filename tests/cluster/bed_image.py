"""A small image without a registry: Debian's static busybox in a docker archive.

It is the image of the sandboxes (its command waits for ever) and of small Pods in tests.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

from .bed_layout import IMAGE

APPLETS = ("cat", "dd", "httpd", "ip", "ls", "mkdir", "nc", "sh", "sleep", "wget")


def write_busybox_archive(target: Path) -> None:
    busybox = shutil.which("busybox")
    if not busybox:
        raise RuntimeError("busybox is missing: `hack/setup test` installs Debian's busybox-static.")
    layer = layer_of(Path(busybox).read_bytes())
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "infinity"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        add(archive, "config.json", json.dumps(config).encode())
        add(archive, "layer.tar", layer)
        add(archive, "manifest.json", json.dumps(manifest).encode())


def layer_of(busybox: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as layer:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        add(layer, "bin/busybox", busybox, 0o755)
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(entry)
    return packed.getvalue()


def add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
