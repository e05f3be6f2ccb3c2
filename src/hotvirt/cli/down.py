"""`hotvirt down`: stop Hotvirt; the guests only when asked."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .failures import CliError
from .options import state_dir_option

if TYPE_CHECKING:
    from hotvirt.embedded.state import StateDir

    from .api import Api

STOPS_WITHIN = 60.0
VMIS = "/apis/kubevirt.io/v1/virtualmachineinstances"
PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
LAUNCHERS = "kubevirt.io=virt-launcher"
MERGE = "application/merge-patch+json"


@click.command()
@click.option("--stop-vms", is_flag=True, help="Shut every guest down first, and wait for it.")
@state_dir_option
def down(stop_vms: bool, state_dir: Path | None) -> None:
    """Stop Hotvirt on this machine.

    Guests keep running, and the next `hotvirt up` takes them over.
    With --stop-vms every guest is shut down first. What the VMs ask for stays as it is: those that should run
    start again with the next `hotvirt up`.

    \b
    Examples:
      hotvirt down
      hotvirt down --stop-vms
    """
    from hotvirt.embedded.state import StateDir, StateError, default_state_dir

    folder = StateDir(state_dir or default_state_dir())
    try:
        running = folder.running() if folder.exists() else None
    except StateError as error:
        raise CliError(str(error)) from error
    if running is None and stop_vms and guests_left(folder):
        from .up import start_detached

        click.echo("Hotvirt is not running, but guests are: starting it to stop them.")
        start_detached(folder, 0, {}, "qemu")
        running = folder.running()
    if running is None:
        click.echo(f"Hotvirt is not running on {folder.path}; there is nothing to stop.")
        return
    left = stop_guests(folder) if stop_vms else running_guests(folder)
    stop_process(running.pid)
    if left:
        click.echo(
            f"Hotvirt has stopped. {left} guest{'s keep' if left > 1 else ' keeps'} running: "
            f"`hotvirt up` takes over, `hotvirt down --stop-vms` stops {'them' if left > 1 else 'it'}."
        )
    else:
        click.echo("Hotvirt has stopped.")


def stop_process(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], STOPS_WITHIN)[0]:
            raise CliError(
                f"Hotvirt (process {pid}) did not stop within {STOPS_WITHIN:.0f} s; its log says why."
            )
    except PermissionError:
        raise CliError(f"Hotvirt (process {pid}) belongs to another user: stop it as that user.") from None
    finally:
        os.close(process)


def guests_left(folder: StateDir) -> bool:
    """Pods of an `up` that is gone may still run: each has its folder."""
    try:
        return any((folder.path / "pods").iterdir())
    except FileNotFoundError:
        return False


def api_of(folder: StateDir) -> Api:
    from .api import connect

    return connect(folder.kubeconfig)


def running_guests(folder: StateDir) -> int:
    """How many guests will keep running; 0 too when the API does not answer any more."""
    from hotvirt.kube.errors import ApiError

    try:
        found = api_of(folder).get(VMIS)["items"]
    except (ApiError, CliError):
        return 0
    return sum(1 for vmi in found if (vmi.get("status") or {}).get("phase") == "Running")


def stop_guests(folder: StateDir) -> int:
    from hotvirt.kube.errors import ApiError

    from .api import cli_error

    api = api_of(folder)
    closed: list[str] = []
    try:
        for name in open_nodes(api):
            set_closed(api, name, True)
            closed.append(name)
        for vmi in api.get(VMIS)["items"]:
            if (vmi.get("status") or {}).get("phase") in ("Running", "Scheduled", "Scheduling"):
                delete(api, vmi)
        wait_until_gone(api)
    except ApiError as error:
        raise cli_error(error) from error
    except KeyboardInterrupt:
        # Who changes their mind has VMs that may start again.
        for name in closed:
            set_closed(api, name, False)
        raise
    return 0


def open_nodes(api: Api) -> list[str]:
    nodes = api.get(NODES)["items"]
    return [node["metadata"]["name"] for node in nodes if not (node.get("spec") or {}).get("unschedulable")]


def set_closed(api: Api, node: str, closed: bool) -> None:
    """As `kubectl cordon`: a VM that starts anew meanwhile waits for the next `up`, which opens the node."""
    from hotvirt.embedded.preflight import ANNOTATION_CLOSED

    annotations = {ANNOTATION_CLOSED: "true" if closed else None}
    patch = {"metadata": {"annotations": annotations}, "spec": {"unschedulable": closed or None}}
    api.request("PATCH", f"{NODES}/{node}", patch, content_type=MERGE)


def delete(api: Api, vmi: dict[str, Any]) -> None:
    from hotvirt.kube.errors import NotFound

    meta = vmi["metadata"]
    click.echo(f"Stopping {meta['namespace']}/{meta['name']} ...")
    path = f"/apis/kubevirt.io/v1/namespaces/{meta['namespace']}/virtualmachineinstances/{meta['name']}"
    try:
        api.request("DELETE", path, {"preconditions": {"uid": meta["uid"]}})
    except NotFound:
        return


def wait_until_gone(api: Api) -> None:
    """Until no launcher Pod is left on a node: its processes, cgroup and network are gone with it."""
    while True:
        listed = api.get(PODS, labelSelector=LAUNCHERS)
        left = {key(pod): name_of(pod) for pod in listed["items"] if placed(pod)}
        if not left:
            return
        for event in api.watch(PODS, listed["metadata"]["resourceVersion"]):
            pod = event["object"]
            if event["type"] == "DELETED" and key(pod) in left:
                click.echo(f"Stopped {left.pop(key(pod))}")
            if not left:
                return


def key(pod: dict[str, Any]) -> str:
    return str(pod["metadata"].get("uid"))


def name_of(pod: dict[str, Any]) -> str:
    labels = pod["metadata"].get("labels") or {}
    return f"{pod['metadata']['namespace']}/{labels.get('vm.kubevirt.io/name') or pod['metadata']['name']}"


def placed(pod: dict[str, Any]) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))
