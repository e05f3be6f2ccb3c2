"""`hotvirt console`: the serial console of a VM in this terminal, as virtctl shows it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failures import UNREACHABLE, CliError
from .options import kubeconfig_option, namespace_option, vm_argument

if TYPE_CHECKING:
    import aiohttp

    from hotvirt.kube.config import ClientConfig

ESCAPE = b"\x1d"
PROTOCOL = "plain.kubevirt.io"
CHUNK = 4096
TRY_AGAIN_IN = 0.5


@click.command()
@vm_argument
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="MINUTES",
    help="How long to wait for the VM to run.",
)
@namespace_option
@kubeconfig_option
def console(vm: str, timeout: float, namespace: str | None, kubeconfig: Path | None) -> None:
    """Open the serial console of a VM.

    Leave it with ctrl-] (or ctrl-5).
    Several may look at the same console at a time. What the guest printed before is in the log:
    kubectl logs POD -c guest-console-log

    \b
    Examples:
      hotvirt console first
      hotvirt console first -n shop --timeout 1
    """
    from .api import connect

    config = connect(kubeconfig).config
    asyncio.run(attach(config, namespace or config.namespace, vm, timeout * 60))


async def attach(config: ClientConfig, namespace: str, name: str, patience: float) -> None:
    from hotvirt.kube.client import Client
    from hotvirt.kube.errors import ApiError

    from .api import cli_error

    async with Client(config) as client:
        try:
            socket = await open_console(client, namespace, name, patience)
        except ApiError as error:
            raise cli_error(error) from error
        with raw_terminal():
            # Said when the terminal is raw (hence the \r): whoever reads it may type at once.
            click.echo(f"Connected to the console of {name}. Leave it with ctrl-].\r", err=True)
            ended = await relay(socket)
    click.echo(err=True)
    if ended:
        raise CliError(f"The console of {name} was closed: the VM stopped, or Hotvirt did.", UNREACHABLE)


async def open_console(
    client: object, namespace: str, name: str, patience: float
) -> aiohttp.ClientWebSocketResponse:
    """The console when the VM runs; while it is on its way there, ask again."""
    from hotvirt.api.resources import VMIS, VMS
    from hotvirt.kube.client import Client
    from hotvirt.kube.errors import ApiError, NotFound, Unreachable

    assert isinstance(client, Client)
    deadline = time.monotonic() + patience
    told = False
    path = f"/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/console"
    while True:
        try:
            return await client.connect_ws(path, (PROTOCOL,))
        except Unreachable:
            raise
        except ApiError as refusal:
            # A websocket's refusal carries no message: ask what is wrong in the plain way.
            try:
                await client.get(VMIS, name, namespace)
            except NotFound as missing:
                try:
                    vm = await client.get(VMS, name, namespace)
                except NotFound:
                    raise missing from None
                if (vm.get("status") or {}).get("printableStatus") == "Stopped":
                    raise CliError(f"The VM {name} is stopped. Start it with: hotvirt start {name}") from None
            if time.monotonic() >= deadline:
                raise refusal
        if not told:
            click.echo(f"Waiting for {name} to run...", err=True)
            told = True
        await asyncio.sleep(TRY_AGAIN_IN)  # the agent opens the console some time after the VMI runs


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Keys go to the guest as they are typed; the terminal is as before afterwards, whatever happens."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def relay(socket: aiohttp.ClientWebSocketResponse) -> bool:
    """Bytes both ways until the user leaves (False) or the other side closes (True)."""
    output = asyncio.create_task(show_output(socket))
    keys = asyncio.create_task(send_keys(socket))
    try:
        await asyncio.wait([output, keys], return_when=asyncio.FIRST_COMPLETED)
        if keys.done() and not keys.result():
            # The input ended without the escape key (a pipe): go on showing what the guest says.
            await output
        return output.done()
    finally:
        for task in (output, keys):
            task.cancel()
        await asyncio.wait([output, keys])
        await socket.close()


async def show_output(socket: aiohttp.ClientWebSocketResponse) -> None:
    import aiohttp

    async for message in socket:
        if message.type == aiohttp.WSMsgType.BINARY:
            sys.stdout.buffer.write(message.data)
        elif message.type == aiohttp.WSMsgType.TEXT:
            sys.stdout.buffer.write(message.data.encode())
        sys.stdout.buffer.flush()


async def send_keys(socket: aiohttp.ClientWebSocketResponse) -> bool:
    """True when the user typed the escape key, False when the input ended."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    fd = sys.stdin.fileno()

    def read() -> None:
        data = os.read(fd, CHUNK)
        if not data:
            loop.remove_reader(fd)
        arrived.put_nowait(data)

    try:
        loop.add_reader(fd, read)
    except PermissionError:
        # A plain file is always readable and cannot be waited for.
        arrived.put_nowait(sys.stdin.buffer.read())
        arrived.put_nowait(b"")
    try:
        while data := await arrived.get():
            typed, escape, _ = data.partition(ESCAPE)
            if typed:
                await socket.send_bytes(typed)
            if escape:
                return True
        return False
    finally:
        loop.remove_reader(fd)
