"""hack/kube/build: where it looks, what it builds, what it says; with a compiler that takes no time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[2] / "hack" / "kube" / "build"

# Writes its -o file, counts its builds and fails when it is told to.
GO = """#!/bin/sh
if [ "$1" = env ]; then echo go1.99.0; exit 0; fi
echo build >> "$0.builds"
if [ -n "$GO_FAILS" ]; then echo "no such module" >&2; exit 1; fi
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n' > "$2" && chmod +x "$2"
"""


@pytest.fixture
def go(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "go"
    path.parent.mkdir()
    path.write_text(GO)
    path.chmod(0o755)
    return path


@pytest.fixture
def environment(tmp_path: Path, go: Path) -> dict[str, str]:
    path = f"{go.parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(tmp_path), "HOTVIRT_CACHE": str(tmp_path / "cache")}


def build(environment: dict[str, str], *programs: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BUILD), *programs], env=environment, capture_output=True, text=True)


def builds(go: Path) -> int:
    counted = go.with_name("go.builds")
    return len(counted.read_text().splitlines()) if counted.exists() else 0


def test_it_builds_once_and_is_then_quiet(environment: dict[str, str], go: Path) -> None:
    first = build(environment, "etcd", "kubectl")
    assert first.returncode == 0, first.stderr
    folder = Path(first.stdout.splitlines()[-1])
    assert sorted(path.name for path in folder.iterdir()) == ["etcd", "kubectl"]
    assert "building kubectl" in first.stderr
    second = build(environment, "etcd", "kubectl")
    assert (second.stdout, second.stderr) == (f"{folder}\n", "")
    assert builds(go) == 2
    build(environment, "kubectl", "kubelet")
    assert builds(go) == 3


def test_two_at_once_build_once(environment: dict[str, str], go: Path) -> None:
    started = [
        subprocess.Popen(
            [str(BUILD), "kubectl"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    folders = {process.communicate()[0] for process in started}
    assert [process.returncode for process in started] == [0, 0]
    assert len(folders) == 1
    assert builds(go) == 1


def test_a_build_that_fails_says_so_and_leaves_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    failed = build(environment | {"GO_FAILS": "yes"}, "kubectl")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "no such module" in failed.stderr
    assert "kubectl could not be built" in failed.stderr
    assert "KUBEBUILDER_ASSETS" in failed.stderr
    (folder,) = (path for path in (tmp_path / "cache" / "kube").iterdir() if path.is_dir())
    assert list(folder.iterdir()) == []


def test_the_users_own_programs_go_first(environment: dict[str, str], go: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "kubectl").touch(mode=0o755)
    found = build(environment | {"KUBEBUILDER_ASSETS": str(own)}, "kubectl")
    assert (found.stdout, found.stderr) == (f"{own}\n", "")
    lacking = build(environment | {"KUBEBUILDER_ASSETS": str(own)}, "kubectl", "etcd")
    assert lacking.returncode == 0
    assert f"KUBEBUILDER_ASSETS={own} has no etcd" in lacking.stderr
    assert str(own) not in lacking.stdout
    assert builds(go) == 2


def test_what_is_missing_is_said_and_not_built(environment: dict[str, str], go: Path) -> None:
    build(environment, "kubectl")
    asked = build(environment, "--missing", "kubectl", "kubelet")
    assert (asked.returncode, asked.stdout) == (0, "kubelet\n")
    assert build(environment, "--missing", "kubectl").stdout == ""
    assert builds(go) == 1


def test_another_minor_and_helm_have_folders_of_their_own(
    environment: dict[str, str], tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "kube-apiserver").touch(mode=0o755)
    assets = environment | {"KUBEBUILDER_ASSETS": str(own)}
    older = build(assets, "--minor", "1.34", "kube-apiserver")
    assert Path(older.stdout.strip()).name.startswith("v1.34."), older.stderr
    helm = build(environment, "helm")
    assert Path(helm.stdout.strip()).name.startswith("helm-v"), helm.stderr
    refused = build(environment, "helm", "kubectl")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Ask for helm alone" in refused.stderr


def test_a_minor_that_is_not_pinned_is_refused(environment: dict[str, str]) -> None:
    refused = build(environment, "--minor", "1.2", "kube-apiserver")
    assert refused.returncode == 1
    assert "No Kubernetes 1.2 is pinned here. There is 1.34." in refused.stderr
    unfinished = build(environment, "--minor")
    assert unfinished.returncode == 1
    assert "Say which minor" in unfinished.stderr


def test_a_program_that_is_none_is_named(environment: dict[str, str]) -> None:
    refused = build(environment, "kubeadm")
    assert refused.returncode == 1
    assert "No such program: kubeadm. There are etcd," in refused.stderr


def test_a_cache_that_cannot_be_written_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    refused = build(environment, "kubectl")
    assert refused.returncode == 1
    assert "HOTVIRT_CACHE" in refused.stderr
    assert "Traceback" not in refused.stderr
