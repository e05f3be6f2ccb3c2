"""Who is at the other end of a socket in a tenant's Pod: a process of that very Pod, or nobody we talk to.

What a process says of itself counts for nothing here. The kernel says which process listens, and the cgroup
that it is in, which no tenant can choose, says which Pod that is. The process is pinned by a descriptor
meanwhile, so that its number cannot become somebody else's between the check and the use.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from pathlib import Path

from hotvirt.hypervisor import sockets
from hotvirt.hypervisor.driver import MachineGone
from hotvirt.node import network

Membership = Callable[[int, str], bool]
"""Whether the process with this number belongs to the Pod with this uid."""

MAX_PROC_FILE = 64 * 1024
_SO_PEERPIDFD = 77  # since Linux 6.5


class StrangerError(RuntimeError):
    """The other end is not what it should be; the message says why."""


def in_pod_cgroup(pid: int, pod_uid: str) -> bool:
    return any(names_pod(line, pod_uid) for line in _proc_file(pid, "cgroup").splitlines())


def of_our_user(pid: int, pod_uid: str) -> bool:
    """For one machine where we may make no cgroups: every Pod is a process of this user's there."""
    for line in _proc_file(pid, "status").splitlines():
        if line.startswith("Uid:"):
            return line.split()[1:2] == [str(os.geteuid())]
    return False


def names_pod(line: str, pod_uid: str) -> bool:
    """Whether a line of /proc/PID/cgroup is that of a Pod.

    The kubelet's folder of a Pod is `pod<uid>` with its cgroupfs driver (the embedded node's too), and
    `kubepods[-<class>]-pod<uid with underscores>.slice` with its systemd driver.
    """
    folders = line.strip().partition(":")[2].partition(":")[2].split("/")
    slice_end = f"-pod{pod_uid.replace('-', '_')}.slice"
    return bool(pod_uid) and any(
        folder == f"pod{pod_uid}" or (folder.startswith("kubepods") and folder.endswith(slice_end))
        for folder in folders
    )


def peer_network(connection: socket.socket, pod_uid: str, belongs: Membership) -> int | None:
    """The network of whoever listens at the other end, as `pod_network`."""
    pid, _ = sockets.peer(connection)
    return pod_network(pid, pod_uid, belongs, _peer_pidfd(connection))


def check_peer(connection: socket.socket, pod_uid: str, belongs: Membership) -> None:
    """Raises StrangerError unless a process of the Pod listens at the other end."""
    namespace = peer_network(connection, pod_uid, belongs)
    if namespace is not None:
        os.close(namespace)


def pod_network(pid: int, pod_uid: str, belongs: Membership, pidfd: int | None = None) -> int | None:
    """The network namespace of a process of the Pod; None when it is our own. Else StrangerError,
    or MachineGone when the process has ended.

    Takes over `pidfd`, where there is one of that process already.
    """
    if pid <= 0:
        raise StrangerError(
            "the process that listens in the Pod cannot be seen from here: the node agent must run in the "
            "node's own process namespace (hostPID)"
        )
    try:
        pinned = pidfd if pidfd is not None else os.pidfd_open(pid)
    except OSError as error:
        raise MachineGone(f"process {pid} of the Pod has ended") from error
    namespace = None
    try:
        if not belongs(pid, pod_uid):
            raise StrangerError(f"process {pid} listens in the folder of Pod {pod_uid} and is not the Pod's")
        namespace = network.open_namespace(pid)
    finally:
        ended = _has_ended(pinned)
        os.close(pinned)
        if ended:  # then what was looked up by its number may be somebody else's
            if namespace is not None:
                os.close(namespace)
            raise MachineGone(f"process {pid} of the Pod has ended")
    return namespace


def _peer_pidfd(connection: socket.socket) -> int | None:
    """Of the process itself, however its number may have been used since; None where the kernel has none."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return None


def _has_ended(pidfd: int) -> bool:
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(0))


def _proc_file(pid: int, name: str) -> str:
    try:
        with Path(f"/proc/{pid}/{name}").open("rb") as file:
            return file.read(MAX_PROC_FILE).decode(errors="replace")
    except OSError:
        return ""
