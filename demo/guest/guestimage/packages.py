"""Debian packages, fetched and unpacked without root and without touching the host's package state.

The host's own package lists are used when they are there. When they are absent, or so old that the
mirror has dropped what they name, the lists are fetched into a private folder and the download is
tried again.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from .errors import BuildError
from .recipe import ARCHITECTURE

FIELD = re.compile(r"^([A-Za-z0-9-]+): (.*)$", re.MULTILINE)


class Apt:
    """apt with its cache, and if need be its lists, in a private folder."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._options = ["-qq", "-o", f"APT::Architecture={ARCHITECTURE}", "-o", "APT::Sandbox::User=root"]
        self._options += ["-o", f"Dir::Cache={state}/cache"]
        (state / "cache/archives/partial").mkdir(parents=True, exist_ok=True)

    def use_fresh_lists(self) -> None:
        """Fetch the package lists of the host's sources into the private folder and use them from now on."""
        (self._state / "lists/lists/partial").mkdir(parents=True, exist_ok=True)
        (self._state / "lists/status").touch()
        self._options += [
            "-o",
            f"Dir::State={self._state}/lists",
            "-o",
            f"Dir::State::status={self._state}/lists/status",
        ]
        # One broken third-party source fails this while Debian's own lists are fine: the download decides.
        self._run("apt-get", "update", check=False)

    def show(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The control fields of those packages that there are, in the version that would be installed."""
        text = self._run("apt-cache", "show", "--no-all-versions", *sorted(names), check=False)
        stanzas = [dict(FIELD.findall(stanza)) for stanza in text.split("\n\n") if stanza.strip()]
        return {fields["Package"]: fields for fields in stanzas}

    def require(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        found = self.show(names)
        if missing := ", ".join(sorted(set(names) - set(found))):
            raise BuildError(f"apt knows no package {missing}; the demo guest needs Debian's own apt sources")
        return found

    def download(self, versions: dict[str, str], into: Path) -> None:
        """Download exactly these versions as .deb files."""
        into.mkdir(parents=True, exist_ok=True)
        self._run(
            "apt-get", "download", *(f"{name}={version}" for name, version in versions.items()), cwd=into
        )

    def _run(self, program: str, *arguments: str, cwd: Path | None = None, check: bool = True) -> str:
        command = [program, *self._options, *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise BuildError(f"{' '.join([program, *arguments[:3]])} … failed: {done.stderr.strip()}")
        return done.stdout


def resolve(apt: Apt, kernel_package: str, userland: tuple[str, ...]) -> dict[str, str]:
    """Name and version of every package that is needed: the real kernel, the programs, their libraries."""
    depends = _depends(apt.require([kernel_package])[kernel_package])
    (kernel,) = [name for name in depends if name.startswith("linux-image-")]
    found = apt.require([kernel, *userland])
    versions = {name: fields["Version"] for name, fields in found.items()}
    seen = set(found)
    wanted = {name for program in userland for name in _depends(found[program])}
    while wanted := wanted - seen:
        seen |= wanted
        # Only libraries: the guest has no dpkg, so what maintainer scripts need is of no use in it.
        libraries = {name: each for name, each in apt.show(wanted).items() if each.get("Section") == "libs"}
        versions |= {name: fields["Version"] for name, fields in libraries.items()}
        wanted = {name for fields in libraries.values() for name in _depends(fields)}
    return dict(sorted(versions.items()))


def _depends(fields: dict[str, str]) -> list[str]:
    """The first alternative of each dependency, without versions."""
    clauses = f"{fields.get('Pre-Depends', '')},{fields.get('Depends', '')}".split(",")
    return [re.split(r"[\s(|:]", clause.strip())[0] for clause in clauses if clause.strip()]


def fetch(store: Path, kernel_package: str, userland: tuple[str, ...], refresh: bool) -> dict[str, str]:
    """Have the packages in `store`; without `refresh`, those that are there already are good enough."""
    names = store / "packages.txt"
    if names.exists() and not refresh:
        return dict(line.split() for line in names.read_text().splitlines())
    apt = Apt(store.parent / "apt")
    if refresh:
        apt.use_fresh_lists()
    try:
        versions = _fetch_once(apt, store, kernel_package, userland)
    except BuildError:
        if refresh:
            raise
        apt.use_fresh_lists()
        versions = _fetch_once(apt, store, kernel_package, userland)
    names.write_text("".join(f"{name} {version}\n" for name, version in versions.items()))
    return versions


def _fetch_once(apt: Apt, store: Path, kernel_package: str, userland: tuple[str, ...]) -> dict[str, str]:
    versions = resolve(apt, kernel_package, userland)
    names = store / "packages.txt"
    if names.exists() and dict(line.split() for line in names.read_text().splitlines()) == versions:
        return versions
    partial = store.with_name(store.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    apt.download(versions, partial)
    shutil.rmtree(store, ignore_errors=True)
    partial.rename(store)
    return versions


def unpack(store: Path, into: Path) -> None:
    """Unpack every package of the store into one tree."""
    for package in sorted(store.glob("*.deb")):
        done = subprocess.run(["dpkg-deb", "-x", package, into], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(f"{package.name} cannot be unpacked: {done.stderr.strip()}")
