"""Python's share of the images: the locked dependencies, our wheel, and byte code for all of it.

The byte code is made by the image's own Python, run from its unpacked layer by its own loader. It is not
checked against the sources at run time: nobody can change them in an image, and the files carry no time.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from .debian import PYTHON
from .errors import BuildError
from .layer import Layer

LIBRARY = f"usr/local/lib/python{PYTHON}/dist-packages"
STANDARD_LIBRARY = f"usr/lib/python{PYTHON}"
PROGRAMS = "usr/local/bin"
# glibc of Debian 12
PLATFORM = "x86_64-manylinux_2_36"
SCRIPT = """#!/usr/bin/python3
import sys

from {module} import {function}

sys.exit({function}())
"""


def uv(cache: Path) -> str:
    """uv, where hack/setup finds or puts it."""
    own = cache / "uv/bin/uv"
    found = shutil.which("uv") or (str(own) if own.exists() else None)
    if found is None:
        raise BuildError("uv is missing, which fetches the Python packages: run hack/setup venv first")
    return found


def runtime_requirements(lock: str, names: Iterable[str]) -> str:
    """The lines of these packages in the lock file, with their hashes."""
    wanted, found, kept, keeping = set(names), set(), [], False
    for line in lock.splitlines():
        if not line.startswith((" ", "\t")):
            name = line.partition("==")[0].strip().lower()
            keeping = name in wanted
            found |= {name} & wanted
        if keeping:
            kept.append(line)
    if missing := ", ".join(sorted(wanted - found)):
        raise BuildError(f"requirements.lock has no {missing}: put deploy/image/lists/python.txt right")
    return "".join(line + "\n" for line in kept)


def add_dependencies(layer: Layer, requirements: str, uv_program: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        listing, target = Path(scratch) / "requirements.txt", Path(scratch) / "target"
        listing.write_text(requirements)
        command = [uv_program, "pip", "install", "--quiet", "--no-config", "--python", sys.executable]
        command += ["--target", str(target), "--link-mode", "copy", "--no-installer-metadata"]
        command += ["--python-version", PYTHON, "--python-platform", PLATFORM, "--only-binary", ":all:"]
        command += ["--no-deps", "--require-hashes", "--requirement", str(listing)]
        _run(command, "the Python packages cannot be fetched")
        shutil.rmtree(target / "bin", ignore_errors=True)
        (target / ".lock").unlink(missing_ok=True)
        layer.add_tree(target, LIBRARY)


def build_wheel(root: Path, into: Path, uv_program: str) -> Path:
    _run(
        [uv_program, "build", "--quiet", "--wheel", "--out-dir", str(into), str(root)],
        "our wheel cannot be built",
    )
    (wheel,) = into.glob("*.whl")
    return wheel


def add_wheel(layer: Layer, wheel: Path, only: Iterable[str] | None = None) -> None:
    """A wheel of pure Python with its programs; with `only`, those modules and their programs."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        wanted = set(names) if only is None else set(only)
        if missing := ", ".join(sorted(wanted - set(names))):
            raise BuildError(f"the wheel has no {missing}: put deploy/image/lists/launcher-modules.txt right")
        for name in names:
            if name in wanted:
                layer.add_file(f"{LIBRARY}/{name}", archive.read(name))
        (entry_points,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
        parser = configparser.ConfigParser()
        parser.read_string(archive.read(entry_points).decode())
    for program, target in sorted(parser["console_scripts"].items()):
        module, _, function = target.partition(":")
        if module.replace(".", "/") + ".py" in wanted:
            script = SCRIPT.format(module=module, function=function)
            layer.add_file(f"{PROGRAMS}/{program}", script.encode(), 0o755)


def add_byte_code(layer: Layer, system: Path, under: str) -> None:
    """Compile what the layer has below `under` with the Python of the system that is unpacked there."""
    loader = next((system / "usr/lib/x86_64-linux-gnu").glob("ld-linux-x86-64.so.2"))
    libraries = f"{system}/usr/lib/x86_64-linux-gnu"
    with tempfile.TemporaryDirectory() as scratch:
        stage = Path(scratch)
        for path in layer:
            if path.startswith(under + "/") and path.endswith(".py"):
                (stage / path).parent.mkdir(parents=True, exist_ok=True)
                (stage / path).write_bytes(layer.content(path))
        command = [str(loader), "--library-path", libraries, f"{system}/usr/bin/python{PYTHON}", "-B", "-S"]
        command += ["-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
        # Seen by nobody but a traceback, which should name the file as it is in the image.
        command += ["-s", str(stage), "-p", "/", str(stage / under)]
        environment = {"PYTHONHOME": f"{system}/usr", "PYTHONHASHSEED": "0", "PATH": os.defpath}
        _run(command, "the Python files cannot be compiled", environment)
        for compiled in sorted(stage.rglob("*.pyc")):
            layer.add_file(compiled.relative_to(stage).as_posix(), compiled.read_bytes())


def _run(command: list[str], complaint: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise BuildError(f"{complaint}: {(done.stderr or done.stdout).strip()}")
