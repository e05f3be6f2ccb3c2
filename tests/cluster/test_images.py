"""The images themselves, unpacked and run by chroot: what is needed is in them, and nothing more than that.

Programs are started as the user that the image names, with the environment of the image and nothing of this
machine but the kernel.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hotvirt
from hotvirt.hypervisor.launcher import USAGE

CHECKOUT = Path(__file__).resolve().parents[2]
# The first of them also waits until the images are built and unpacked.
pytestmark = pytest.mark.timeout(900)
NAMES = ("controller", "launcher", "demo-guest", "pause")

# Every kind of device that a machine may have: QEMU opens their modules and ROMs when it starts.
MACHINE = "-nodefaults -no-user-config -display none -machine q35 -accel tcg,tb-size=64 -m 64,maxmem=1G"
BACKENDS = (
    "-object memory-backend-ram,id=mem,size=128M -netdev user,id=a -netdev user,id=b -chardev null,id=log"
)
DEVICES = (
    "pvpanic virtio-serial-pci isa-serial,chardev=log virtio-rng-pci virtio-balloon-pci VGA virtio-scsi-pci"
)
DEVICES += (
    " pcie-root-port,chassis=1 ich9-ahci virtio-mem-pci,memdev=mem virtio-net-pci,netdev=a e1000,netdev=b"
)
LOADER = "/lib64/ld-linux-x86-64.so.2"


@dataclass(frozen=True)
class Unpacked:
    root: Path
    names: list[str]
    config: dict[str, Any]

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        chroot = ["chroot", f"--userspec={self.config['User']}", "--groups=", str(self.root), *command]
        environment = dict(entry.split("=", 1) for entry in self.config["Env"])
        return subprocess.run(
            chroot, input=stdin, capture_output=True, text=True, timeout=600, env=environment, check=False
        )


def unpack(archive: Path, root: Path) -> Unpacked:
    with tarfile.open(archive) as tar:

        def blob(digest: str) -> Any:
            return tar.extractfile("blobs/sha256/" + digest.removeprefix("sha256:"))

        index = json.loads((tar.extractfile("index.json") or pytest.fail("no index.json")).read())
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"])) as files:
                files.extractall(root, filter="fully_trusted")
        names = [each["annotations"]["io.containerd.image.name"] for each in index["manifests"]]
        return Unpacked(root, names, json.load(blob(manifest["config"]["digest"]))["config"])


@pytest.fixture(scope="module")
def unpacked() -> Iterator[dict[str, Unpacked]]:
    built = subprocess.run(
        [CHECKOUT / "deploy/image/build", *NAMES], stdout=subprocess.PIPE, text=True, check=True
    )
    folder = Path(built.stdout.split()[-1])
    # The folders of pytest are closed to the users that the images name.
    with tempfile.TemporaryDirectory(prefix="hotvirt-images-") as open_folder:
        Path(open_folder).chmod(0o755)
        images = {name: unpack(folder / f"{name}.tar", Path(open_folder) / name) for name in NAMES}
        for image in images.values():
            add_null_device(image.root)
        yield images


def add_null_device(root: Path) -> None:
    """The one device that programs do not start without; a container has it too."""
    null = root / "dev/null"
    null.parent.mkdir(exist_ok=True)
    os.mknod(null, stat.S_IFCHR, os.makedev(1, 3))
    null.chmod(0o666)


@pytest.fixture(scope="module")
def launcher(unpacked: dict[str, Unpacked]) -> Unpacked:
    return unpacked["launcher"]


@pytest.fixture(scope="module")
def controller(unpacked: dict[str, Unpacked]) -> Unpacked:
    return unpacked["controller"]


def test_the_launcher_starts_as_the_user_of_the_machines(launcher: Unpacked) -> None:
    assert launcher.config["User"] == "107:107"
    said = launcher.run(*launcher.config["Entrypoint"])
    assert (said.returncode, said.stderr.strip()) == (2, USAGE)
    # As in the Pod of a VM, where it is looked for on the path.
    found = launcher.run("python3", "-c", "import shutil; print(shutil.which('hotvirt-launcher'))")
    assert found.stdout.strip() == "/usr/local/bin/hotvirt-launcher"


def test_qemu_starts_in_the_launcher_with_every_device(launcher: Unpacked) -> None:
    command = ["qemu-system-x86_64", *MACHINE.split(), *BACKENDS.split(), "-S", "-qmp", "stdio"]
    for device in DEVICES.split():
        command += ["-device", device]
    conversation = "".join(
        json.dumps({"execute": verb}) + "\n" for verb in ("qmp_capabilities", "query-status", "quit")
    )
    said = launcher.run(*command, stdin=conversation)
    assert said.returncode == 0, said.stderr
    answers = [json.loads(line) for line in said.stdout.splitlines()]
    assert [each["return"]["status"] for each in answers if "status" in each.get("return", {})] == [
        "prelaunch"
    ]


def test_the_launcher_can_make_disks_and_lend_its_busybox(launcher: Unpacked) -> None:
    made = launcher.run("qemu-img", "create", "-f", "qcow2", "/tmp/disk.qcow2", "1G")
    assert made.returncode == 0, made.stderr
    copied = launcher.run("/usr/bin/busybox", "cp", "/tmp/disk.qcow2", "/tmp/copy.qcow2")
    assert copied.returncode == 0, copied.stderr
    busybox = (launcher.root / "usr/bin/busybox").read_bytes()
    assert b"/lib64/ld-linux" not in busybox, "it has to run in an image that has no libraries"


def test_the_launcher_has_only_its_own_modules_of_hotvirt(launcher: Unpacked) -> None:
    library = launcher.root / "usr/local/lib/python3.11/dist-packages"
    assert [path.name for path in library.iterdir()] == ["hotvirt"]
    assert not (library / "hotvirt/controllers").exists()


def test_all_of_hotvirt_can_be_imported_in_the_controller(controller: Unpacked) -> None:
    assert controller.config["User"] == "65532:65532"
    every_module = (
        "import hotvirt, importlib, pkgutil\n"
        "names = [each.name for each in pkgutil.walk_packages(hotvirt.__path__, 'hotvirt.')]\n"
        "for name in names:\n"
        "    if not name.endswith('.__main__'): importlib.import_module(name)\n"
        "print(len(names))\n"
    )
    said = controller.run("python3", "-c", every_module)
    assert said.returncode == 0, said.stderr
    assert int(said.stdout) > 50


@pytest.mark.parametrize("program", ["hotvirt-controller", "hotvirt-node", "hotvirt-launcher", "ip", "nft"])
def test_the_controller_has_what_it_and_the_node_agent_run(controller: Unpacked, program: str) -> None:
    found = controller.run("python3", "-c", f"import shutil; print(shutil.which({program!r}))")
    assert found.stdout.strip().endswith(f"/{program}")


def test_the_launcher_finds_out_for_the_node_agent_what_guests_run_on(launcher: Unpacked) -> None:
    said = launcher.run("hotvirt-launcher", "probe")
    # No /dev/kvm in this container.
    assert (said.returncode, said.stdout) == (0, "guests run with tcg on this node\n"), said.stderr
    firmware = "from hotvirt.hypervisor.qemu.accel import works\nprint(asyncio.run(works('tcg', 60)))"
    assert launcher.run("python3", "-c", f"import asyncio\n{firmware}").stdout == "True\n"


@pytest.mark.parametrize("name", ["launcher", "controller"])
def test_every_program_finds_its_libraries(unpacked: dict[str, Unpacked], name: str) -> None:
    """What is left out of the packages is really needed by nothing."""
    image = unpacked[name]
    programs = [str(file) for file in elf_files(image.root)]
    assert len(programs) > 100
    check = (
        "import subprocess, sys\n"
        f"loader = {LOADER!r}\n"
        "for name in sys.stdin.read().split():\n"
        "    done = subprocess.run([loader, '--list', name], capture_output=True, text=True)\n"
        "    text = done.stdout + done.stderr\n"
        "    if 'not found' in text or 'cannot open' in text: print(name, text)\n"
    )
    said = image.run("python3", "-c", check, stdin="\n".join(programs))
    assert (said.returncode, said.stdout) == (0, ""), said.stdout + said.stderr


def elf_files(root: Path) -> Iterator[Path]:
    for file in root.rglob("*"):
        if not file.is_symlink() and file.is_file():
            with file.open("rb") as content:
                if content.read(4) == b"\x7fELF":
                    yield Path("/") / file.relative_to(root)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_can_be_changed_or_used_to_become_root(unpacked: dict[str, Unpacked], name: str) -> None:
    root = unpacked[name].root
    for path in root.rglob("*"):
        status = path.lstat()
        here = f"/{path.relative_to(root)}"
        if here.startswith(("/tmp/", "/dev/")) or path.is_symlink():
            continue
        assert (status.st_uid, status.st_gid) == (0, 0), here
        assert not status.st_mode & 0o6000, f"{here} is set-uid"
        assert status.st_mode & 0o1002 != 0o002, f"{here} can be changed by everybody"
    assert not (root / "usr/bin/apt-get").exists() and not (root / "usr/bin/sh").exists()
    assert name == "launcher" or not list(root.rglob("qemu-system-*"))


def test_byte_code_is_used_as_it_is(launcher: Unpacked) -> None:
    """Compiling the imports again at every start of a VM would take longer than all the rest."""
    said = launcher.run("python3", "-v", "/usr/local/bin/hotvirt-launcher")
    ours = [line for line in said.stderr.splitlines() if "hotvirt" in line and "code object" in line]
    assert ours and all(".pyc" in line for line in ours), ours
    assert "wrote" not in said.stderr


def test_images_have_the_names_that_kubelets_look_for(unpacked: dict[str, Unpacked]) -> None:
    version = hotvirt.__version__
    assert unpacked["launcher"].names == [f"docker.io/hotvirt/launcher:{version}"]
    assert unpacked["controller"].names == [f"docker.io/hotvirt/controller:{version}"]
    assert f"docker.io/hotvirt/demo-guest:{version}" in unpacked["demo-guest"].names
    labels = unpacked["controller"].config["Labels"]
    assert labels["org.opencontainers.image.version"] == version
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_demo_guest_is_a_disk_and_nothing_else(unpacked: dict[str, Unpacked]) -> None:
    files = [path for path in unpacked["demo-guest"].root.rglob("*") if path.is_file()]
    assert [path.relative_to(unpacked["demo-guest"].root).as_posix() for path in files] == ["disk/disk.img"]
    assert files[0].read_bytes()[510:512] == b"\x55\xaa"
