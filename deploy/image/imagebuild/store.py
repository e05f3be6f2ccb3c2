"""What was built before, outside the checkout: layers and archives by the key of their inputs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .archive import Blob
from .layer import Layer

# A few states of a checkout come and go while somebody works: more than these are only in the way.
KEPT = 4


def key_of(*parts: object) -> str:
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()[:16]


def files_key(root: Path, files: Iterable[Path]) -> str:
    """Changes with the name or content of any of the files."""
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root)} {len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def used_now(path: Path) -> None:
    """By our own clock: that of many kernels gives all that is done within some milliseconds one time."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))


class Store:
    """Layers, archives and the folders that callers are given, each built once."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self.folder, self.epoch = folder, epoch
        for name in ("layers", "archives", "out"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def layer(self, name: str, title: str, key: str, make: Callable[[], Layer]) -> Blob:
        file = self.folder / "layers" / f"{name}-{key}.tar"
        record = file.with_suffix(".json")
        if not record.exists():
            unfinished = file.with_suffix(".new")
            with unfinished.open("wb") as target:
                make().write(target, self.epoch)
            with unfinished.open("rb") as written:
                digest = hashlib.file_digest(written, "sha256").hexdigest()
            unfinished.rename(file)
            # The record comes last: where it is, the layer is whole.
            record.write_text(json.dumps({"digest": digest, "size": file.stat().st_size}))
        used_now(file)
        known = json.loads(record.read_text())
        return Blob(file, known["digest"], known["size"], title)

    def archive(self, name: str, key: str, make: Callable[[Path], object]) -> Path:
        file = self.folder / "archives" / f"{name}-{key}.tar"
        if not file.exists():
            unfinished = file.with_suffix(".new")
            make(unfinished)
            unfinished.rename(file)
        used_now(file)
        return file

    def hand_out(self, archives: dict[str, Path]) -> Path:
        """A folder with these archives under their plain names, the same one for the same archives."""
        folder = self.folder / "out" / key_of(*sorted(file.name for file in archives.values()))
        if not folder.exists():
            unfinished = Path(tempfile.mkdtemp(dir=self.folder / "out", prefix="new-"))
            unfinished.chmod(0o755)
            for name, file in archives.items():
                (unfinished / f"{name}.tar").hardlink_to(file)
            unfinished.rename(folder)
        used_now(folder)
        return folder

    def forget_old(self) -> None:
        by_name: dict[str, list[Path]] = {}
        for file in [*self.folder.glob("layers/*.tar"), *self.folder.glob("archives/*.tar")]:
            by_name.setdefault(f"{file.parent.name}/{file.stem.rpartition('-')[0]}", []).append(file)
        by_name["out"] = list(self.folder.glob("out/*"))
        for paths in by_name.values():
            for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)[KEPT:]:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.with_suffix(".json").unlink(missing_ok=True)
                    path.unlink()
