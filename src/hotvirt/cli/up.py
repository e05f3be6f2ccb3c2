"""`hotvirt up`: one-machine mode, in the foreground with what happens as it happens, or detached."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failures import CliError
from .options import state_dir_option

if TYPE_CHECKING:
    from hotvirt.embedded.state import StateDir
    from hotvirt.embedded.up import Options

DEFAULT_PORT = 7643
ALLOCATABLE = ("cpu", "memory", "ephemeral-storage", "pods")


def parse_allocatable(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, str]:
    from hotvirt.api.quantity import Quantity

    found: dict[str, str] = {}
    for part in value.split(",") if value else ():
        name, _, amount = part.strip().partition("=")
        if name not in ALLOCATABLE:
            raise click.BadParameter(f"{part!r} is not one of {', '.join(ALLOCATABLE)} with =AMOUNT.")
        if problem := Quantity.parse_error(amount):
            raise click.BadParameter(f"{name} is {amount!r}, which is no quantity: {problem}")
        if Quantity(amount) <= Quantity(0):
            raise click.BadParameter(f"{name} is {amount!r}, which leaves nothing for VMs.")
        found[name] = amount
    return found


def parse_nodes(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value > 1:
        raise click.BadParameter("Hotvirt runs one node on a machine for now: leave --nodes away.")
    return value


@click.command()
@click.option("-d", "--detach", is_flag=True, help="Return when it is ready; it goes on in the background.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    metavar="P",
    help="The API's port on the loopback; 0 takes any that is free.",
)
@click.option(
    "--allocatable",
    callback=parse_allocatable,
    metavar="cpu=N,memory=Q",
    help="What the node offers to VMs. [default: all of this machine]",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=1,
    callback=parse_nodes,
    metavar="N",
    help="How many nodes.",
)
@state_dir_option
@click.option("--hypervisor", type=click.Choice(["qemu", "instant"]), default="qemu", hidden=True)
@click.option("--ready-fd", type=int, hidden=True)
def up(
    detach: bool,
    port: int,
    allocatable: dict[str, str],
    nodes: int,
    state_dir: Path | None,
    hypervisor: str,
    ready_fd: int | None,
) -> None:
    """Start a Kubernetes API, Hotvirt's controllers and a node on this machine.

    Everything is in one state folder. Guests that run already are taken over as they are. The API
    listens on the loopback only.

    \b
    Examples:
      hotvirt up                                    in the foreground; ctrl-c leaves the guests running
      hotvirt up --detach                           in the background
      hotvirt up --allocatable cpu=32,memory=64Gi   offer more, or less, than the machine has
      hotvirt up --state-dir /tmp/try --port 0      a second one beside the first
    """
    from hotvirt.embedded.state import StateDir, default_state_dir

    folder = StateDir(state_dir or default_state_dir())
    check(folder, port, hypervisor)
    if detach:
        start_detached(folder, port, allocatable, hypervisor)
        click.echo("Hotvirt is ready. Use it with:")
        click.echo(f"export KUBECONFIG={shlex.quote(str(folder.kubeconfig))}")
        return
    from hotvirt.embedded.up import Options

    options = Options(folder, port, allocatable, hypervisor)
    if ready_fd is not None:
        in_background(options, ready_fd)
    else:
        in_foreground(options)


def check(folder: StateDir, port: int, hypervisor: str) -> None:
    """Everything that can be known to be wrong before anything is made."""
    from hotvirt.embedded.preflight import Refusal, check_packages, check_port
    from hotvirt.embedded.state import AlreadyRunning, StateError

    try:
        if folder.exists() and (running := folder.running()) is not None:
            raise AlreadyRunning(folder.path, running.pid)
        if hypervisor == "qemu":
            check_packages()
        check_port(port)
        folder.prepare()
    except (StateError, Refusal) as error:
        raise CliError(str(error)) from error


def start_detached(folder: StateDir, port: int, allocatable: dict[str, str], hypervisor: str) -> None:
    """Start `up` in a process of its own and wait for its word that it is ready, or why not."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "hotvirt.cli", "up", "--state-dir", str(folder.path)]
    command += ["--port", str(port), "--hypervisor", hypervisor, "--ready-fd", str(write)]
    if allocatable:
        command += ["--allocatable", ",".join(f"{name}={amount}" for name, amount in allocatable.items())]
    with folder.log.open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[write],
            start_new_session=True,
            cwd="/",
        )
    os.close(write)
    try:
        with os.fdopen(read, "rb") as words:
            said = words.readline().decode().strip()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise
    if said == "ready":
        return
    child.wait()
    raise CliError(said or f"Hotvirt ended before it was ready; {folder.log} says why.")


def in_background(options: Options, ready_fd: int) -> None:
    from hotvirt.embedded.preflight import Refusal
    from hotvirt.embedded.state import StateError
    from hotvirt.embedded.up import run

    os.set_inheritable(ready_fd, False)

    def say(text: str) -> None:
        os.write(ready_fd, f"{text}\n".encode())
        os.close(ready_fd)

    try:
        run(options, ready=lambda started: say("ready"))
    except (StateError, Refusal) as error:
        say(" ".join(str(error).split()))
        raise CliError(str(error)) from error


def show_warnings() -> None:
    """What the log has as a warning or worse is worth a line here too; the details stay in the log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(OneLine(datefmt="%H:%M:%S"))
    logging.getLogger().addHandler(handler)


class OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        cause = f" ({record.exc_info[1]})" if record.exc_info and record.exc_info[1] else ""
        return f"{self.formatTime(record, self.datefmt)}  ! {record.getMessage()}{cause}"


def in_foreground(options: Options) -> None:
    from hotvirt.embedded.preflight import Refusal
    from hotvirt.embedded.state import StateError
    from hotvirt.embedded.up import Started, run

    from .feed import Feed

    click.echo(f"Starting Hotvirt on {options.state.path} (log: {options.state.log})")
    show_warnings()

    def ready(started: Started) -> None:
        click.echo(f"Ready: {started.server}. In another terminal:")
        click.echo(f"  export KUBECONFIG={shlex.quote(str(options.state.kubeconfig))}")
        click.echo("ctrl-c stops Hotvirt; guests keep running.")

    try:
        run(options, ready=ready, beside=lambda started: Feed(started.client, click.echo).run())
    except (StateError, Refusal) as error:
        raise CliError(str(error)) from error
    click.echo("Hotvirt has stopped. Guests keep running; `hotvirt up` takes them over.")
