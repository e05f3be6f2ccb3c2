"""The image recipe's writers and lists. That the images work is for tests/cluster/test_images.py."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import io
import json
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy/image"))

# E402: their folder was not on the path before
from imagebuild import archive, debian, python, recipe  # noqa: E402
from imagebuild.errors import BuildError  # noqa: E402
from imagebuild.layer import Layer  # noqa: E402
from imagebuild.store import KEPT, Store  # noqa: E402


def written(files: Layer, epoch: int = 0) -> bytes:
    target = io.BytesIO()
    files.write(target, epoch)
    return target.getvalue()


def members(files: Layer) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(written(files))) as tar:
        return {member.name: member for member in tar}


def package_tar(*contents: tuple[str, bytes, str, int]) -> io.BytesIO:
    """(name, type, content or target, mode) as a package has them."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, kind, text, mode in contents:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime, member.uid, member.uname = kind, mode, 1234, 7, "games"
            if kind == tarfile.REGTYPE:
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
            else:
                member.linkname = text
                tar.addfile(member)
    target.seek(0)
    return target


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def test_the_same_files_are_the_same_bytes_in_whatever_order_they_come() -> None:
    one, other = Layer(), Layer()
    files = [("usr/lib/a", b"1"), ("etc/" + "long" * 60, b"2"), ("usr/lib-b/c", b"3")]
    for path, content in files:
        one.add_file(path, content)
    for path, content in reversed(files):
        other.add_file(path, content)
    assert written(one) == written(other)
    assert written(one) != written(one, epoch=1)


def test_files_belong_to_root_and_have_no_set_uid_bit() -> None:
    layer = Layer()
    layer.add_tar(package_tar(("./usr/bin/su", FILE, "x", 0o4755), ("./tmp", FOLDER, "", 0o1777)))
    found = members(layer)
    assert found["usr/bin/su"].mode == 0o755
    assert found["tmp"].mode == 0o1777
    assert {(each.uid, each.gid, each.uname, each.mtime) for each in found.values()} == {(0, 0, "", 0)}
    assert list(found) == ["tmp", "usr", "usr/bin", "usr/bin/su"]


def test_packages_from_before_the_merge_of_usr_land_in_usr() -> None:
    layer = Layer()
    layer.add_tar(
        package_tar(
            ("./bin/", FOLDER, "", 0o755),
            ("./bin/ip", FILE, "program", 0o755),
            ("./sbin/ip", LINK, "/bin/ip", 0o777),
            ("./usr/bin/ip", LINK, "/bin/ip", 0o777),
            ("./bin/rtmon", HARD, "./bin/ip", 0o755),
        )
    )
    found = members(layer)
    assert found["usr/bin/ip"].isreg()
    assert found["usr/sbin/ip"].linkname == "/bin/ip"
    assert found["usr/bin/rtmon"].isreg() and layer.content("usr/bin/rtmon") == b"program"
    assert not [path for path in found if path.startswith(("bin", "sbin"))]


def test_documentation_goes_and_licences_stay() -> None:
    layer = Layer()
    for name in ("doc/qemu/copyright", "doc/qemu/changelog.gz", "man/man1/qemu.1.gz"):
        layer.add_file(f"usr/share/{name}", b"x")
    kept = layer.without(["usr/share/doc/*", "usr/share/man/*"], but=debian.LICENCES)
    assert "usr/share/doc/qemu/copyright" in kept
    assert not [path for path in kept if path.endswith(".gz")]


def test_an_unpacked_layer_reads_back_as_itself(tmp_path: Path) -> None:
    layer = Layer()
    layer.add_file("usr/bin/program", b"x", 0o755)
    layer.add_file("etc/file", b"y")
    layer.add_link("bin", "usr/bin")
    layer.unpack(tmp_path)
    again = Layer()
    again.add_tree(tmp_path)
    assert written(again) == written(layer)


# ---- the archive ----


def blob(tmp_path: Path, name: str) -> archive.Blob:
    content = name.encode() * 100
    file = tmp_path / name
    file.write_bytes(content)
    return archive.Blob(file, hashlib.sha256(content).hexdigest(), len(content), name)


def image(tmp_path: Path) -> archive.Image:
    return archive.Image(
        names=("hotvirt/some:1", "hotvirt/some:latest"),
        layers=(blob(tmp_path, "base"), blob(tmp_path, "code")),
        entrypoint=("/usr/bin/program",),
        user="107:107",
        environment={"PATH": "/usr/bin"},
        labels={"org.opencontainers.image.version": "1"},
    )


def opened(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as tar:
        return {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}


def follow(content: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    data = content["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
    assert len(data) == descriptor["size"]
    assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"]
    return data


def test_an_archive_is_one_consistent_oci_layout(tmp_path: Path) -> None:
    digest = archive.write(image(tmp_path), tmp_path / "some.tar", epoch=0)
    content = opened(tmp_path / "some.tar")
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    entries = json.loads(content["index.json"])["manifests"]
    assert {entry["digest"] for entry in entries} == {digest}
    manifest = json.loads(follow(content, entries[0]))
    layers = [follow(content, layer) for layer in manifest["layers"]]
    assert layers == [b"base" * 100, b"code" * 100]
    config = json.loads(follow(content, manifest["config"]))
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert config["config"]["User"] == "107:107"
    assert config["config"]["Entrypoint"] == ["/usr/bin/program"]
    assert config["created"] == "1970-01-01T00:00:00Z"
    (docker,) = json.loads(content["manifest.json"])
    assert [content[name] for name in docker["Layers"]] == layers


def test_containerd_gets_the_name_that_a_kubelet_looks_for(tmp_path: Path) -> None:
    archive.write(image(tmp_path), tmp_path / "some.tar", epoch=0)
    entries = json.loads(opened(tmp_path / "some.tar")["index.json"])["manifests"]
    names = [entry["annotations"]["io.containerd.image.name"] for entry in entries]
    assert names == ["docker.io/hotvirt/some:1", "docker.io/hotvirt/some:latest"]


def test_two_archives_of_one_image_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.tar", "other.tar"):
        archive.write(image(tmp_path), tmp_path / name, epoch=1700000000)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "other.tar").read_bytes()


# ---- the store ----


def a_layer() -> Layer:
    layer = Layer()
    layer.add_file("etc/file", b"x")
    return layer


def never() -> Layer:
    raise AssertionError("it is there already")


def test_a_layer_is_made_once_for_a_key(tmp_path: Path) -> None:
    store = Store(tmp_path, epoch=0)
    first = store.layer("base", "Debian", "k1", a_layer)
    assert store.layer("base", "Debian", "k1", never) == first
    assert hashlib.sha256(first.file.read_bytes()).hexdigest() == first.digest


def test_a_layer_whose_making_was_cut_short_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path, epoch=0)
    first = store.layer("base", "Debian", "k1", a_layer)
    first.file.with_suffix(".json").unlink()
    first.file.write_bytes(b"half")
    assert store.layer("base", "Debian", "k1", a_layer) == first
    assert first.file.stat().st_size == first.size


def test_old_states_are_forgotten_and_the_newest_stay(tmp_path: Path) -> None:
    store = Store(tmp_path, epoch=0)
    for number in range(KEPT + 2):
        file = store.archive("controller", f"k{number}", lambda target: target.write_bytes(b"x"))
        folder = store.hand_out({"controller": file})
    base = store.layer("base", "Debian", "k0", a_layer)
    store.forget_old()
    assert len(list(tmp_path.glob("archives/*"))) == KEPT
    assert len(list(tmp_path.glob("out/*"))) == KEPT
    assert (folder / "controller.tar").read_bytes() == b"x"
    assert base.file.exists()


# ---- the lists ----


def imported_by(name: str) -> set[str]:
    """The modules of ours that a module imports when it runs; not what is there for the type checker."""
    tree = ast.parse((ROOT / "src" / name).read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    modules: set[str] = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {module for module in modules if module.split(".")[0] == "hotvirt"}


def files_of(module: str) -> set[str]:
    path = module.replace(".", "/")
    found = {f"{path}.py", f"{path}/__init__.py"}
    parents = path.split("/")[:-1]
    found |= {"/".join(parents[: count + 1]) + "/__init__.py" for count in range(len(parents))}
    return {name for name in found if (ROOT / "src" / name).exists()}


def test_the_launcher_has_exactly_the_modules_that_it_imports() -> None:
    found: set[str] = set()
    ahead = files_of("hotvirt.hypervisor.launcher")
    while ahead:
        name = ahead.pop()
        found.add(name)
        ahead |= {file for module in imported_by(name) for file in files_of(module)} - found
    assert sorted(found) == recipe.entries("launcher-modules"), "put lists/launcher-modules.txt right"


def test_the_list_of_python_packages_is_what_hotvirt_needs_at_run_time() -> None:
    here = {"extra": "", "python_version": "3.11", "python_full_version": "3.11.2"}
    found: set[str] = set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ahead: list[str] = project["dependencies"] + project["optional-dependencies"]["cluster"]
    while ahead:
        requirement = Requirement(ahead.pop())
        name = requirement.name.lower().replace("_", "-")
        if name not in found and (requirement.marker is None or requirement.marker.evaluate(here)):
            found.add(name)
            ahead += importlib.metadata.requires(name) or ()
    assert sorted(found) == recipe.entries("python"), "put lists/python.txt right"


def test_only_the_listed_packages_of_the_lock_are_installed_with_their_hashes() -> None:
    text = python.runtime_requirements((ROOT / "requirements.lock").read_text(), ["attrs", "pyyaml"])
    assert re.findall(r"^(\S+)==", text, re.MULTILINE) == ["attrs", "pyyaml"]
    assert text.count("--hash=sha256:") >= 4
    with pytest.raises(BuildError, match="no such-package"):
        python.runtime_requirements("attrs==1 \\\n    --hash=sha256:00\n", ["such-package"])


def test_the_containerfile_reads_the_same_lists() -> None:
    text = (ROOT / "deploy/image/Containerfile").read_text()
    # What is left out of unpacked packages has no counterpart where they are installed.
    lists = {path.name for path in (ROOT / "deploy/image/lists").glob("*.txt")} - {"left-out.txt"}
    assert set(re.findall(r"lists/([a-z-]+\.txt)", text)) == lists


def test_a_wheel_gives_its_modules_and_programs(tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as target:
        target.writestr("some/__init__.py", "")
        target.writestr("some/one.py", "def main(): ...")
        target.writestr("some/other.py", "def run(): ...")
        target.writestr(
            "some-1.dist-info/entry_points.txt",
            "[console_scripts]\none = some.one:main\nother = some.other:run\n",
        )
    layer = Layer()
    python.add_wheel(layer, wheel, only=["some/__init__.py", "some/one.py"])
    assert [path for path in layer if path.startswith("usr/local/bin/")] == ["usr/local/bin/one"]
    assert b"from some.one import main" in layer.content("usr/local/bin/one")
    assert f"{python.LIBRARY}/some/other.py" not in layer
    with pytest.raises(BuildError, match=r"no some/third\.py"):
        python.add_wheel(Layer(), wheel, only=["some/third.py"])
