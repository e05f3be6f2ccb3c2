"""Debian packages as layers: resolved by apt against an empty system, unpacked, not installed.

No maintainer script runs, so nothing needs root and nothing of this machine gets into an image. What those
scripts would have made (users, the name service's configuration) is written here.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from .errors import BuildError
from .layer import MERGED, Layer

PYTHON = "3.11"
LICENCES = "usr/share/doc/*/copyright"
DOCUMENTATION = "usr/share/doc/*"
INSTALLED = re.compile(r"^Inst (\S+) \((\S+) ", re.MULTILINE)

ACCOUNTS = {
    "etc/passwd": (
        "root:x:0:0:root:/root:/sbin/nologin\n"
        "qemu:x:107:107:virtual machines:/nonexistent:/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n"
        "hotvirt:x:65532:65532:Hotvirt:/nonexistent:/sbin/nologin\n"
    ),
    "etc/group": "root:x:0:\nqemu:x:107:\nnogroup:x:65534:\nhotvirt:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n",
}


class Apt:
    """apt for an empty Debian 12, with the package sources of this machine and folders of its own."""

    def __init__(self, state: Path) -> None:
        self._state = state
        (state / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        settings = {
            "APT::Architecture": "amd64",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "Debug::NoLocking": "true",
            "Dir::Cache": f"{state}/cache",
            "Dir::State::status": f"{state}/status",
        }
        self._options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]

    def use_fresh_lists(self) -> None:
        """Fetch the package lists into the private folder and use them from now on."""
        (self._state / "lists/partial").mkdir(parents=True, exist_ok=True)
        self._options += ["-o", f"Dir::State::lists={self._state}/lists"]
        # One broken third-party source fails this while Debian's own lists are fine: the download decides.
        self._run("update", check=False)

    def resolve(self, names: Iterable[str]) -> dict[str, str]:
        """Name and version of the packages and of all that they depend on."""
        return dict(INSTALLED.findall(self._run("--simulate", "install", *names)))

    def download(self, names: Iterable[str]) -> Path:
        """Fetch the packages with all that they depend on; the folder with the .deb files."""
        self._run("--yes", "--download-only", "install", *names)
        return self._state / "cache/archives"

    def _run(self, *arguments: str, check: bool = True) -> str:
        environment = os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "-q", *self._options, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if check and done.returncode != 0:
            raise BuildError(
                f"apt cannot get the packages of the images, which come from Debian 12: {done.stderr.strip()}"
            )
        return done.stdout


def fetch(
    store: Path,
    lists: dict[str, list[str]],
    below: dict[str, tuple[str, ...]],
    left_out: set[str],
    refresh: bool,
) -> dict[str, list[Path]]:
    """The .deb files of each layer, without what lies below it; from the store when they are there."""
    plan = store / "layers.txt"
    if refresh or not plan.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise BuildError(
                "the images are made of Debian packages: apt-get and dpkg-deb are needed for that"
            )
        try:
            text = _download(Apt(store), store, lists, below, left_out, fresh=refresh)
        except BuildError:
            text = _download(Apt(store), store, lists, below, left_out, fresh=True)
        plan.write_text(text)
    layers: dict[str, list[Path]] = {title: [] for title in lists}
    for line in plan.read_text().splitlines():
        title, name, version = line.split()
        layers[title].append(store / "packages" / _file_name(name, version))
    return layers


def _download(
    apt: Apt,
    store: Path,
    lists: dict[str, list[str]],
    below: dict[str, tuple[str, ...]],
    left_out: set[str],
    fresh: bool,
) -> str:
    if fresh:
        apt.use_fresh_lists()
    packages = store / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    packages.mkdir(parents=True)
    layers: dict[str, dict[str, str]] = {}
    for title, names in lists.items():
        beneath = {name: version for layer in below[title] for name, version in layers[layer].items()}
        # What is there already is named with its version, so that a layer never asks for a second one of it.
        versions = apt.resolve([*(f"{name}={version}" for name, version in beneath.items()), *names])
        layers[title] = {name: versions[name] for name in sorted(set(versions) - set(beneath))}
    found = {name: version for versions in layers.values() for name, version in versions.items()}
    if not found["python3"].startswith(PYTHON):
        raise BuildError(
            f"the images are made of Debian 12 with Python {PYTHON}, and this machine's apt sources have "
            f"{found['python3']}: build them on Debian 12, or with the Containerfile"
        )
    archives = apt.download(f"{name}={version}" for name, version in found.items())
    for name, version in found.items():
        (file,) = archives.glob(f"{name}_{version.replace(':', '%3a')}_*.deb")
        file.rename(packages / _file_name(name, version))
    return "".join(
        f"{title} {name} {version}\n"
        for title, versions in layers.items()
        for name, version in versions.items()
        if name not in left_out
    )


def _file_name(name: str, version: str) -> str:
    return f"{name}_{version.replace(':', '_')}.deb"


def layer_of(packages: Iterable[Path], patterns: list[str]) -> Layer:
    """The packages' files, less what the patterns leave out, and a record of each package for scanners."""
    whole = Layer()
    for package in packages:
        whole.add_tar(io.BytesIO(_dpkg_deb("--fsys-tarfile", package)))
        name = package.name.partition("_")[0]
        whole.add_file(f"var/lib/dpkg/status.d/{name}", _dpkg_deb("--field", package))
    return whole.without([*patterns, DOCUMENTATION], but=LICENCES)


def _dpkg_deb(option: str, package: Path) -> bytes:
    done = subprocess.run(["dpkg-deb", option, package], capture_output=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{package.name} cannot be read: {done.stderr.decode().strip()}")
    return done.stdout


def add_system_files(layer: Layer) -> None:
    """What an installation would have made."""
    for name in MERGED:
        layer.add_folder(f"usr/{name}")
        layer.add_link(name, f"usr/{name}")
    for path, text in ACCOUNTS.items():
        layer.add_file(path, text.encode())
