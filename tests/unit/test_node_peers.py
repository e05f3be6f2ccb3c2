"""Who listens in a Pod's run folder, and how the folder is found."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hotvirt.hypervisor import sockets
from hotvirt.hypervisor.driver import MachineGone
from hotvirt.node.folders import open_run_folder, run_folder
from hotvirt.node.peers import (
    StrangerError,
    check_peer,
    in_pod_cgroup,
    names_pod,
    of_our_user,
    peer_network,
    pod_network,
)

UID = "0f4b3f4e-1f7c-4a53-9a4e-51c5d2f8a111"
OTHER = "0f4b3f4e-1f7c-4a53-9a4e-51c5d2f8a112"
LISTENER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("some.sock")
listener.listen()
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "line",
    [
        f"0::/kubepods/burstable/pod{UID}/0123abcd",
        f"5:memory:/kubepods/pod{UID}/0123abcd",
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-0123.scope",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/x",
        f"0::/../../kubepods-besteffort-pod{UID.replace('-', '_')}.slice/cri-containerd-0123.scope",
        f"9:cpu,cpuacct:/hotvirt-0123456789/pod{UID}/compute",
    ],
)
def test_a_cgroup_names_its_pod(line):
    assert names_pod(line, UID)
    assert not names_pod(line, OTHER)
    assert not names_pod(line, UID[:-1])
    assert not names_pod(line, "")


@pytest.mark.parametrize(
    "line",
    [
        "0::/",
        f"pod{UID}",
        f"1:name=pod{UID}:/user.slice",
        f"0::/system.slice/my-pod{UID.replace('-', '_')}.slice",
        f"0::/xpod{UID}/y",
    ],
)
def test_another_cgroup_does_not(line):
    assert not names_pod(line, UID)


def test_this_process_is_in_no_pod_and_is_ours():
    assert not in_pod_cgroup(os.getpid(), UID)
    assert of_our_user(os.getpid(), UID)


@pytest.fixture
def listener(tmp_path):
    """A process that listens in a folder; (its pid, a connection to it)."""
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdin is not None
    process.stdout.readline()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "some.sock"))
        try:
            yield process, connection
        finally:
            process.kill()
            process.communicate()


def test_the_kernel_says_who_listens(listener):
    process, connection = listener
    asked = []
    assert peer_network(connection, UID, lambda pid, uid: asked.append((pid, uid)) is None) is None
    assert asked == [(process.pid, UID)]
    assert sockets.peer(connection)[0] == process.pid


@pytest.mark.parametrize("look", [peer_network, check_peer])
def test_a_process_of_another_pod_is_refused(listener, look, open_files):
    _, connection = listener
    before = open_files()
    with pytest.raises(StrangerError, match=f"Pod {UID}"):
        look(connection, UID, in_pod_cgroup)
    assert open_files() == before


def test_a_process_that_ends_meanwhile_is_gone(listener, open_files):
    process, connection = listener

    def dies(pid: int, uid: str) -> bool:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return True

    before = open_files()
    with pytest.raises(MachineGone):
        peer_network(connection, UID, dies)
    assert open_files() == before


def test_a_process_that_cannot_be_seen_is_refused():
    with pytest.raises(StrangerError, match="hostPID"):
        pod_network(0, UID, lambda pid, uid: True)


def test_the_run_folder_is_where_the_kubelet_makes_it(tmp_path):
    folder = run_folder(tmp_path, UID)
    with pytest.raises(FileNotFoundError):
        open_run_folder(tmp_path, UID)
    folder.mkdir(parents=True)
    descriptor = open_run_folder(tmp_path, UID)
    try:
        assert os.path.samestat(os.fstat(descriptor), folder.stat())
    finally:
        os.close(descriptor)


def test_the_node_root_itself_may_be_a_link(tmp_path):
    run_folder(tmp_path / "real", UID).mkdir(parents=True)
    (tmp_path / "root").symlink_to("real")
    os.close(open_run_folder(tmp_path / "root", UID))


@pytest.mark.parametrize("depth", range(5))
def test_a_link_on_the_way_to_the_run_folder_is_refused(tmp_path, depth, open_files):
    root = tmp_path / "root"
    folder = run_folder(root, UID)
    folder.mkdir(parents=True)
    parts = folder.relative_to(root).parts
    linked = root.joinpath(*parts[: depth + 1])
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    assert folder.is_dir()
    before = open_files()
    with pytest.raises(OSError):
        open_run_folder(root, UID)
    assert open_files() == before


@pytest.mark.parametrize("uid", ["", "..", "../../etc", "a/b"])
def test_what_is_no_uid_is_no_path(tmp_path, uid):
    run_folder(tmp_path, "a/b").mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        open_run_folder(Path(tmp_path), uid)
