"""What each image consists of, from the layer that changes least to the one that changes most.

`controller` and `launcher` are what a cluster runs; `demo-guest` (a containerDisk) and `pause` (a container
that only waits) are for tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from . import debian, python
from .archive import Blob, Image
from .errors import BuildError
from .layer import Layer
from .store import Store, files_key, key_of

ROOT = Path(__file__).resolve().parents[3]
LISTS = ROOT / "deploy/image/lists"
RELEASED = ("controller", "launcher")
NAMES = (*RELEASED, "demo-guest", "pause")
# A layer has what it needs beyond the layers that lie below it in its image.
PACKAGE_LAYERS = {"base": (), "qemu": ("base",), "launcher": ("base", "qemu"), "controller": ("base",)}
PATH = "/usr/local/bin:/usr/bin:/usr/sbin"
BUSYBOX = "usr/bin/busybox"
DESCRIPTIONS = {
    "controller": "Hotvirt's controller and node agent",
    "launcher": "QEMU in the Pod of a virtual machine",
    "demo-guest": "A small Linux that boots in a second, as a containerDisk",
    "pause": "A container that only waits",
}


def entries(name: str) -> list[str]:
    """The lines of a list, without comments."""
    lines = (line.partition("#")[0].strip() for line in (LISTS / f"{name}.txt").read_text().splitlines())
    return [line for line in lines if line]


def version() -> str:
    found = re.search(r'__version__ = "(.+)"', (ROOT / "src/hotvirt/__init__.py").read_text())
    if found is None:
        raise BuildError("src/hotvirt/__init__.py names no __version__")
    return found[1]


class Recipe:
    def __init__(self, store: Store, cache: Path, say: Callable[[str], None]) -> None:
        self._store, self._cache, self._say = store, cache, say
        self._recipe_key = key_of(
            files_key(ROOT, (ROOT / "deploy/image/imagebuild").glob("*.py")), store.epoch
        )
        self._left_out = entries("left-out")

    def fetch_packages(self, refresh: bool) -> None:
        """Have the Debian packages here."""
        lists = {name: entries(name) for name in PACKAGE_LAYERS}
        unwanted = {entry for entry in self._left_out if not entry.startswith("/")}
        folder = self._store.folder / f"debian-{key_of(lists, PACKAGE_LAYERS, sorted(unwanted))}"
        folder.mkdir(exist_ok=True)
        if refresh or not (folder / "layers.txt").exists():
            self._say("fetching Debian packages, 60 MB")
        self._packages = debian.fetch(folder, lists, PACKAGE_LAYERS, unwanted, refresh)

    def image(self, name: str) -> tuple[str, Callable[[], Image]]:
        """The key of an image, which is quickly known, and how to make it."""
        if name == "controller":
            key = key_of(self._key("base"), self._key(name), self._lock_key, self._wheel_key)
        elif name == "launcher":
            key = key_of(self._key("base"), self._key("qemu"), self._key(name), self._launcher_key)
        elif name == "demo-guest":
            key = key_of(self._recipe_key, self._guest_disk)
        else:
            key = self._key("launcher")
        return key_of(key, self._labels(name)), lambda: self._image(name)

    def _image(self, name: str) -> Image:
        names = [f"hotvirt/{name}:{version()}"]
        entrypoint: tuple[str, ...] = ()
        user = ""
        if name == "controller":
            layers = [self._debian("base"), self._debian(name), self._dependencies(), self._wheel()]
            entrypoint, user = ("/usr/local/bin/hotvirt-controller",), "65532:65532"
        elif name == "launcher":
            layers = [self._debian("base"), self._debian("qemu"), self._debian(name), self._launcher()]
            entrypoint, user = ("/usr/local/bin/hotvirt-launcher",), "107:107"
        elif name == "demo-guest":
            layers = [self._disk()]
            names.append("hotvirt/demo-guest:latest")
        else:
            layers = [self._busybox()]
            entrypoint, user = (f"/{BUSYBOX}", "sleep", "infinity"), "65532:65532"
        return Image(tuple(names), tuple(layers), entrypoint, user, {"PATH": PATH}, self._labels(name))

    def _labels(self, name: str) -> dict[str, str]:
        labels = {
            "title": f"hotvirt/{name}",
            "description": DESCRIPTIONS[name],
            "version": version(),
            "licenses": "Apache-2.0",
            "source": os.environ.get("HOTVIRT_SOURCE_URL", ""),
        }
        return {f"org.opencontainers.image.{label}": text for label, text in labels.items() if text}

    # ---- Debian's layers ----

    def _key(self, layer: str) -> str:
        names = [package.name for package in self._packages[layer]]
        return key_of(self._recipe_key, names, self._left_out)

    def _debian(self, name: str) -> Blob:
        title = "Debian 12: " + " ".join(entries(name))
        return self._store.layer(name, title, self._key(name), lambda: self._make_debian(name))

    def _make_debian(self, name: str) -> Layer:
        self._say(f"unpacking {len(self._packages[name])} packages of the layer {name}")
        patterns = [entry[1:] for entry in self._left_out if entry.startswith("/")]
        layer = debian.layer_of(self._packages[name], patterns)
        if name == "base":
            debian.add_system_files(layer)
            with tempfile.TemporaryDirectory() as scratch:
                layer.unpack(Path(scratch))
                python.add_byte_code(layer, Path(scratch), python.STANDARD_LIBRARY)
        return layer

    # ---- Python's layers ----

    @cached_property
    def _lock_key(self) -> str:
        return key_of(self._key("base"), self._requirements)

    @cached_property
    def _requirements(self) -> str:
        return python.runtime_requirements((ROOT / "requirements.lock").read_text(), entries("python"))

    @cached_property
    def _wheel_key(self) -> str:
        sources = [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
        sources += [
            file
            for file in (ROOT / "src/hotvirt").rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        ]
        return key_of(self._key("base"), files_key(ROOT, sources))

    @cached_property
    def _launcher_key(self) -> str:
        sources = [ROOT / "src" / name for name in entries("launcher-modules")]
        for source in sources:
            if not source.exists():
                raise BuildError(f"there is no {source}: put {LISTS}/launcher-modules.txt right")
        return key_of(self._key("base"), files_key(ROOT, [*sources, ROOT / "pyproject.toml"]))

    def _dependencies(self) -> Blob:
        def make() -> Layer:
            self._say("fetching the Python packages")
            layer = Layer()
            python.add_dependencies(layer, self._requirements, python.uv(self._cache))
            python.add_byte_code(layer, self._system(), python.LIBRARY)
            return layer

        return self._store.layer("python", "the packages of requirements.lock", self._lock_key, make)

    def _wheel(self) -> Blob:
        return self._store.layer(
            "hotvirt", f"hotvirt {version()}", self._wheel_key, lambda: self._our_code(None)
        )

    def _launcher(self) -> Blob:
        title = f"hotvirt-launcher {version()}"
        return self._store.layer(
            "hotvirt-launcher", title, self._launcher_key, lambda: self._our_code(entries("launcher-modules"))
        )

    def _our_code(self, only: list[str] | None) -> Layer:
        layer = Layer()
        with tempfile.TemporaryDirectory() as scratch:
            wheel = python.build_wheel(ROOT, Path(scratch), python.uv(self._cache))
            python.add_wheel(layer, wheel, only)
        python.add_byte_code(layer, self._system(), python.LIBRARY)
        return layer

    def _system(self) -> Path:
        """The base layer as a folder, to run its Python."""
        folder = self._store.folder / f"system-{self._key('base')}"
        if not folder.exists():
            for old in self._store.folder.glob("system-*"):
                shutil.rmtree(old)
            unfinished = Path(tempfile.mkdtemp(dir=self._store.folder, prefix="system-new-"))
            layer = Layer()
            with self._debian("base").file.open("rb") as file:
                layer.add_tar(file)
            layer.unpack(unfinished)
            unfinished.rename(folder)
        return folder

    # ---- the images for tests ----

    @cached_property
    def _guest_disk(self) -> Path:
        done = subprocess.run(
            [ROOT / "demo/guest/build"], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT
        )
        if done.returncode != 0:
            raise BuildError("the demo guest's disk cannot be made, see above")
        return Path(done.stdout.split()[-1])

    def _disk(self) -> Blob:
        def make() -> Layer:
            layer = Layer()
            layer.add_file("disk/disk.img", self._guest_disk.read_bytes())
            return layer

        key = key_of(self._recipe_key, self._guest_disk)
        return self._store.layer("demo-disk", "the demo guest's disk", key, make)

    def _busybox(self) -> Blob:
        def make() -> Layer:
            whole = debian.layer_of(self._packages["launcher"], [])
            layer = Layer()
            layer.add_file(BUSYBOX, whole.content(BUSYBOX), 0o755)
            return layer

        return self._store.layer("busybox", "Debian 12: busybox-static", self._key("launcher"), make)
