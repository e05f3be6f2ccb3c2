"""The real program when something is wrong: one sentence, a non-zero exit, nothing half-made."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from hotvirt.cli.main import COMMANDS, cli
from tests.scenarios.place import HOTVIRT, run_hotvirt

from .up import Up

FAILED, USAGE, UNREACHABLE, NOT_FOUND = 1, 2, 3, 4


def refused(done: subprocess.CompletedProcess[str], code: int, *says: str) -> None:
    """One sentence on stderr that has all of `says`, nothing on stdout, the exit code."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Error: ")
    for text in says:
        assert text in lines[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--invent"], "No such option '--invent'"),
        (["invent"], "No such command 'invent'"),
        (["up", "--port", "70000"], "70000 is not in the range"),
        (["up", "--allocatable", "cpu=many"], "no quantity"),
        (["up", "--allocatable", "gpu=1"], "is not one of cpu, memory"),
        (["up", "--allocatable", "cpu=0"], "leaves nothing for VMs"),
        (["up", "--nodes", "2"], "one node on a machine for now"),
        (["start"], "Missing argument 'VM'"),
        (["pause", "vm", "a", "b"], "Name one VM"),
        (["restart", "a", "--grace-period", "5"], "only with --force"),
        (["image", "ls", "-o", "xml"], "'xml' is not one of 'json', 'yaml'"),
        (["image", "import", "name"], "Missing argument 'FILE'"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    refused(run_hotvirt(*arguments, state=state), USAGE, says, "See: hotvirt")
    assert not state.exists()


def test_a_busy_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for detach in ([], ["--detach"]):
            done = run_hotvirt("up", *detach, "--port", port, state=tmp_path / "state")
            refused(done, FAILED, f"Port {port}", "--port")
    assert not (tmp_path / "state").exists()


def test_missing_packages(tmp_path: Path) -> None:
    done = run_hotvirt("up", "--detach", state=tmp_path / "state", env={"PATH": "/nowhere"})
    refused(done, FAILED, "sudo apt-get install qemu-system-x86 qemu-utils")
    assert not (tmp_path / "state").exists()


def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    for arguments in (["up", "--detach"], ["down"], ["status"], ["image", "ls"]):
        refused(
            run_hotvirt(*arguments, "--state-dir", str(tmp_path)), FAILED, "is not Hotvirt's", "--state-dir"
        )
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


def test_a_full_disk(tmp_path: Path) -> None:
    """On a file system of 1 MiB, in a mount namespace of its own."""
    inside = (
        f"mount -t tmpfs -o size=1m none {tmp_path} && {HOTVIRT} up --detach --state-dir {tmp_path}/state"
    )
    inside += f"; code=$?; ls {tmp_path}; exit $code"
    command = [
        "unshare",
        *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]),
        "--mount",
        "sh",
        "-c",
    ]
    done = subprocess.run([*command, inside], capture_output=True, text=True, timeout=120)
    refused(done, FAILED, "is full", "Free some space")


def test_an_image_with_a_backing_file_and_other_bad_images(tmp_path: Path) -> None:
    base, overlay = tmp_path / "base.qcow2", tmp_path / "overlay.qcow2"
    quiet = {"check": True, "capture_output": True}
    subprocess.run(["qemu-img", "create", "-f", "qcow2", str(base), "1M"], **quiet)
    subprocess.run(
        ["qemu-img", "create", "-f", "qcow2", "-F", "qcow2", "-b", str(base), str(overlay)], **quiet
    )
    state = tmp_path / "state"
    refused(run_hotvirt("image", "import", "my/os:1", str(overlay), state=state), FAILED, "backing file")
    refused(run_hotvirt("image", "import", "my/os:1", str(tmp_path / "none"), state=state), FAILED, "none")
    refused(
        run_hotvirt("image", "import", "Not A Name", str(base), state=state), FAILED, "is not an image name"
    )
    refused(run_hotvirt("image", "rm", "my/os:1", state=state), NOT_FOUND, "There is no image my/os:1")
    listed = run_hotvirt("image", "ls", "-o", "json", state=state)
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])


def test_images_come_and_go(tmp_path: Path) -> None:
    disk, state = tmp_path / "disk.qcow2", tmp_path / "state"
    subprocess.run(["qemu-img", "create", "-f", "qcow2", str(disk), "8M"], check=True, capture_output=True)
    done = run_hotvirt("image", "import", "my/os", str(disk), state=state)
    assert done.returncode == 0, done.stderr
    assert "my/os:latest imported (qcow2" in done.stdout
    (found,) = yaml.safe_load(run_hotvirt("image", "ls", "-o", "yaml", state=state).stdout)
    assert (found["name"], found["format"], found["virtual_size"]) == ("my/os:latest", "qcow2", 8 << 20)
    table = run_hotvirt("image", "ls", state=state).stdout.splitlines()
    assert table[0].split()[:3] == ["NAME", "FORMAT", "SIZE"]
    assert table[1].startswith("my/os:latest")
    assert run_hotvirt("image", "rm", "my/os", state=state).returncode == 0
    assert json.loads(run_hotvirt("image", "ls", "-o", "json", state=state).stdout) == []


def test_nothing_runs(tmp_path: Path) -> None:
    state = tmp_path / "state"
    refused(run_hotvirt("status", state=state), UNREACHABLE, "is not running", "hotvirt up")
    refused(run_hotvirt("start", "first", state=state), UNREACHABLE, "There is no API", "hotvirt up")
    refused(run_hotvirt("console", "first", state=state), UNREACHABLE, "There is no API")
    refused(run_hotvirt("kubeconfig", state=state), UNREACHABLE, "`hotvirt up` writes it")
    done = run_hotvirt("down", state=state)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing to stop" in done.stdout
    found = run_hotvirt("status", "-o", "json", state=state)
    assert found.returncode == UNREACHABLE
    assert json.loads(found.stdout)["running"] is False
    assert not state.exists()


def test_an_api_that_is_down(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with socket.socket() as silent:
        # Ours as long as this lasts, so that nobody else listens there; and we do not.
        silent.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{silent.getsockname()[1]}"
        config.write_text(
            yaml.safe_dump(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": server}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                }
            )
        )
        for arguments in (["start", "a"], ["console", "a"], ["pause", "a"]):
            done = run_hotvirt(*arguments, "--kubeconfig", str(config))
            refused(done, UNREACHABLE, "cannot be reached", "hotvirt up")
    refused(
        run_hotvirt("start", "a", "--kubeconfig", str(tmp_path / "none")), FAILED, "There is no kubeconfig"
    )


def test_short_commands_start_in_under_200_ms(tmp_path: Path) -> None:
    """By the processor time of the best run: what the program needs, not what the machine does meanwhile."""

    def used() -> float:
        so_far = resource.getrusage(resource.RUSAGE_CHILDREN)
        return so_far.ru_utime + so_far.ru_stime

    for arguments in (["--help"], ["version"], ["status"]):
        times = []
        for _ in range(5):
            before = used()
            run_hotvirt(*arguments, state=tmp_path / "state", env={"PYTHONDONTWRITEBYTECODE": ""})
            times.append(used() - before)
        assert min(times) < 0.2, (arguments, times)


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    context = click.Context(cli)
    for name, (_, help) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(200) == help


def test_help_teaches() -> None:
    done = run_hotvirt("--help")
    assert done.returncode == 0
    for text in ("export KUBECONFIG=$(hotvirt kubeconfig)", "Exit codes:", "--stop-vms", "image import"):
        assert text in done.stdout
    for command in ("up", "down", "image", "start", "stop", "console"):
        assert "Example" in run_hotvirt(command, "--help").stdout


def test_as_a_kubectl_plugin(tmp_path: Path, kubectl_program: str) -> None:
    plugin = HOTVIRT.with_name("kubectl-hotvirt")
    assert plugin.exists()
    path = f"{plugin.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [kubectl_program, "hotvirt", "version"],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
    )
    assert (done.returncode, done.stdout) == (0, run_hotvirt("version").stdout)
    done = subprocess.run(
        [kubectl_program, "hotvirt", "start"], capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
    assert "See: kubectl hotvirt start --help" in done.stderr


def test_shell_completion() -> None:
    assert "_HOTVIRT_COMPLETE" in run_hotvirt("completion", "bash").stdout
    done = run_hotvirt(
        env={"_HOTVIRT_COMPLETE": "bash_complete", "COMP_WORDS": "hotvirt st", "COMP_CWORD": "1"}
    )
    assert {line.split(",")[1] for line in done.stdout.splitlines()} == {"start", "status", "stop"}


# With a running Hotvirt


def test_a_second_up_is_refused_with_the_process_that_has_the_folder(up: Up) -> None:
    for detach in ([], ["--detach"]):
        refused(up.hotvirt("up", *detach, "--port", "0"), FAILED, f"process {up.pid}", "hotvirt down")


def test_status(up: Up) -> None:
    found = json.loads(up.hotvirt("status", "-o", "json").stdout)
    assert found["running"] is True
    assert found["ready"] is True
    assert found["pid"] == up.pid
    assert re.fullmatch(r"https://127\.0\.0\.1:\d+", found["server"])
    assert found["kubeconfig"] == str(up.kubeconfig)
    assert up.kubeconfig.stat().st_mode & 0o777 == 0o600
    shown = up.hotvirt("status").stdout
    assert found["server"] in shown
    assert up.hotvirt("kubeconfig").stdout.strip() == str(up.kubeconfig)


def test_no_such_vm(up: Up) -> None:
    for verb in ("start", "stop", "restart", "pause", "unpause", "soft-reboot"):
        refused(up.hotvirt(verb, "nothing"), NOT_FOUND, "nothing", "not found")
    done = up.hotvirt("console", "nothing", "--timeout", "0")
    refused(done, NOT_FOUND, "nothing", "not found")


def test_detach_prints_the_line_that_sets_kubeconfig_and_down_ends_it(tmp_path: Path) -> None:
    state = tmp_path / "a folder with spaces"
    done = run_hotvirt("up", "--detach", "--port", "0", "--hypervisor", "instant", state=state)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    shell = subprocess.run(
        ["bash", "-c", f'{line}; printf %s "$KUBECONFIG"'], capture_output=True, text=True, check=True
    )
    assert shell.stdout == str(state / "kubeconfig")
    done = run_hotvirt("down", state=state)
    assert (done.returncode, done.stdout) == (0, "Hotvirt has stopped.\n")
    refused(run_hotvirt("status", state=state), UNREACHABLE, "is not running")


@pytest.fixture
def foreground(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [
        str(HOTVIRT),
        "up",
        "--port",
        "0",
        "--hypervisor",
        "instant",
        "--state-dir",
        str(tmp_path / "state"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    yield process
    process.kill()
    process.wait()


def test_foreground_shows_what_happens_and_ctrl_c_ends_it(
    foreground: subprocess.Popen[str], tmp_path: Path, kubectl_program: str
) -> None:
    assert foreground.stdout is not None
    for line in foreground.stdout:
        if "ctrl-c" in line:
            break
    up = Up(tmp_path / "state", kubectl_program)
    up.kubectl("create", "-f", "-", input=json.dumps(vm("shown")))
    for line in foreground.stdout:
        if "vm default/shown" in line:
            break
    else:
        raise AssertionError("the VM was not shown")
    foreground.send_signal(2)
    rest = foreground.stdout.read()
    assert "Hotvirt has stopped." in rest
    assert foreground.wait(120) == 0


def vm(name: str) -> dict[str, object]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "runStrategy": "Halted",
            "template": {
                "spec": {
                    "domain": {"devices": {}, "memory": {"guest": "256Mi"}},
                    "terminationGracePeriodSeconds": 0,
                }
            },
        },
    }


def test_a_state_folder_so_deep_that_its_socket_has_no_name(tmp_path: Path) -> None:
    state = tmp_path / "/".join(["deep" * 10] * 4) / "state"
    done = run_hotvirt("up", "--detach", "--port", "0", "--hypervisor", "instant", state=state)
    assert done.returncode == 0, done.stderr
    assert run_hotvirt("status", state=state).returncode == 0
    assert run_hotvirt("down", state=state).returncode == 0
    shutil.rmtree(state)
