"""`hotvirt status`: does it run, where, and what do its guests have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .failures import UNREACHABLE, CliError
from .options import output_option, state_dir_option
from .output import show, table


@click.command()
@output_option
@state_dir_option
def status(output: str | None, state_dir: Path | None) -> None:
    """Show whether Hotvirt runs here, and its VMs as the guests see themselves.

    Exits with 3 when it does not run.
    """
    from hotvirt.embedded.state import StateDir, StateError, default_state_dir

    folder = StateDir(state_dir or default_state_dir())
    try:
        running = folder.running() if folder.exists() else None
    except StateError as error:
        raise CliError(str(error)) from error
    found: dict[str, Any] = {"running": running is not None, "stateDir": str(folder.path)}
    if running is None:
        if output:
            show(found, output)
        raise CliError(f"Hotvirt is not running on {folder.path}. Start it with: hotvirt up", UNREACHABLE)
    found |= {"pid": running.pid, "ready": running.ready, "server": running.server}
    found["kubeconfig"] = str(folder.kubeconfig)
    if running.ready:
        found["virtualMachines"] = machines(folder.kubeconfig)
    if output:
        show(found, output)
    else:
        show_for_people(found)


def machines(kubeconfig: Path) -> list[dict[str, Any]]:
    from hotvirt.kube.errors import ApiError

    from .api import cli_error, connect

    api = connect(kubeconfig, timeout=10.0)
    try:
        vms = api.get("/apis/kubevirt.io/v1/virtualmachines")["items"]
        vmis = api.get("/apis/kubevirt.io/v1/virtualmachineinstances")["items"]
    except ApiError as error:
        raise cli_error(error) from error
    running = {(vmi["metadata"]["namespace"], vmi["metadata"]["name"]): vmi for vmi in vmis}
    rows = []
    for vm in vms:
        key = (vm["metadata"]["namespace"], vm["metadata"]["name"])
        state = (vm.get("status") or {}).get("printableStatus") or "Stopped"
        rows.append(row(key, state, running.pop(key, None)))
    for key, vmi in running.items():
        rows.append(row(key, (vmi.get("status") or {}).get("phase") or "Pending", vmi))
    return sorted(rows, key=lambda found: (found["namespace"], found["name"]))


def row(key: tuple[str, str], state: str, vmi: dict[str, Any] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"namespace": key[0], "name": key[1], "status": state}
    status = (vmi or {}).get("status") or {}
    vcpus = (status.get("hotvirt") or {}).get("vcpus") or {}
    topology = status.get("currentCPUTopology") or {}
    if topology:
        found["vcpus"] = (
            (topology.get("sockets") or 1) * (topology.get("cores") or 1) * (topology.get("threads") or 1)
        )
    if vcpus.get("online") is not None:
        found["guestVcpus"] = vcpus["online"]
    memory = status.get("memory") or {}
    if memory.get("guestCurrent"):
        found["guestMemory"] = memory["guestCurrent"]
    interfaces = status.get("interfaces") or []
    if interfaces and interfaces[0].get("ipAddress"):
        found["address"] = interfaces[0]["ipAddress"]
    return found


def show_for_people(found: dict[str, Any]) -> None:
    click.echo(f"Hotvirt {'runs' if found['ready'] else 'is starting'} (process {found['pid']})")
    click.echo(f"  API         {found['server']}")
    click.echo(f"  kubeconfig  {found['kubeconfig']}")
    click.echo(f"  state       {found['stateDir']}")
    machines = found.get("virtualMachines") or []
    if not machines:
        click.echo("No VMs yet. Try: kubectl apply -f examples/01-first-vm.yaml")
        return
    click.echo()
    rows = [
        [
            machine["namespace"],
            machine["name"],
            machine["status"],
            str(machine.get("guestVcpus", machine.get("vcpus", "-"))),
            str(machine.get("guestMemory", "-")),
            str(machine.get("address", "-")),
        ]
        for machine in machines
    ]
    table(["NAMESPACE", "NAME", "STATUS", "VCPUS", "MEMORY", "ADDRESS"], rows)
