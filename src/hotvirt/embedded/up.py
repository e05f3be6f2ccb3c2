"""One-machine mode, assembled: API server, controllers, node and node agent in one process.

The parts know each other only through the API: each has a client of its own on the unix socket, with a token
of its own. A part that crashes is started again beside the others. Ending this process never ends a guest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import uvloop

from hotvirt import __version__
from hotvirt.api import names
from hotvirt.api.resources import KUBEVIRTS, NAMESPACES, NODES, Resource
from hotvirt.kube.client import Client
from hotvirt.kube.config import ClientConfig
from hotvirt.kube.errors import AlreadyExists, ApiError, NotFound
from hotvirt.kube.memory import quiet_the_collector

from .apiserver.server import ApiServer
from .apiserver.store import Store, StoreError
from .inside import Inside, InsideTransport
from .parts import Parts
from .pki import Pki
from .preflight import ANNOTATION_CLOSED, Refusal, port_refusal
from .state import StateDir, StateError, write_atomically
from .supervisor import Supervisor

log = logging.getLogger(__name__)
READY_WITHIN = 120.0
LOG_SIZE = 16 << 20
LOG_FILES = 3


@dataclass(frozen=True)
class Options:
    state: StateDir
    port: int
    allocatable: Mapping[str, str]
    hypervisor: str = "qemu"


@dataclass(frozen=True)
class Started:
    """What whoever started it may want to use."""

    server: str
    client: Client


def run(
    options: Options,
    *,
    ready: Callable[[Started], None],
    beside: Callable[[Started], Awaitable[None]] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT. `beside` runs with it, once it is ready."""
    options.state.prepare()
    with options.state.locked() as lock:
        log_to(options.state.log)

        def say_ready(started: Started) -> None:
            lock.say(server=started.server, ready=True)
            ready(started)

        try:
            uvloop.run(serve(options, say_ready, beside))
        except (StateError, Refusal):
            raise
        except Exception as error:
            log.exception("Hotvirt failed")
            raise Refusal(
                f"Hotvirt failed: {error or type(error).__name__}. See {options.state.log}."
            ) from error


async def serve(
    options: Options,
    ready: Callable[[Started], None],
    beside: Callable[[Started], Awaitable[None]] | None = None,
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    log.info("Hotvirt %s starts on %s (process %d)", __version__, options.state.path, os.getpid())
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(start(options, stack))
        try:
            if not await first_of(starting, stopping):
                return
            started, supervisor = await starting
            quiet_the_collector()
            ready(started)
            log.info("Hotvirt is ready at %s", started.server)
            if beside is not None:
                supervisor.start("what is shown beside", lambda: beside(started))
            await stopping.wait()
        finally:
            starting.cancel()
            await asyncio.wait([starting])
            log.info("Hotvirt stops; guests keep running")


async def first_of(task: asyncio.Task[object], stopping: asyncio.Event) -> bool:
    """Wait for the task, or for the wish to stop. True when the task came first."""
    asked = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        asked.cancel()


async def start(options: Options, stack: AsyncExitStack) -> tuple[Started, Supervisor]:
    """Everything in its order; the stack undoes it backwards."""
    state = options.state
    pki = Pki.open(state.pki)
    try:
        store = Store(state.database)
    except StoreError as error:
        raise StateError(str(error)) from error
    folder = os.open(state.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, folder)

    inside = Inside()

    def client_for(user: str, component: str, groups: tuple[str, ...] = (), patient: bool = False) -> Client:
        config = ClientConfig(unix_socket=state.socket, token=pki.token_for(user, groups))
        transport = InsideTransport(inside, config, f"{component}/{__version__}", patient)
        client = Client(config, transport=transport)
        stack.push_async_callback(client.close)
        return client

    parts = Parts(
        node_name(state), state, options.allocatable, options.hypervisor, client_for, pki.ca_pem.decode()
    )
    server = ApiServer(
        store,
        pki,
        parts.admission(store),
        parts.subresources(),
        parts,
        # The kernel takes 107 bytes of a socket's path, and the state folder may lie deep.
        socket=Path(f"/proc/self/fd/{folder}/{state.socket.name}"),
        audit_log=state.audit_log,
    )
    stack.push_async_callback(server.stop)
    try:
        await server.start(options.port)
    except OSError as error:
        raise port_refusal(options.port, error) from error
    inside.server = server
    pki.write_kubeconfig(state.kubeconfig, server.url)

    admin = client_for("hotvirt-up", "hotvirt-up", (names.MASTERS_GROUP,))
    await make(admin, NAMESPACES, {"metadata": {"name": names.NAMESPACE}})
    await make(admin, KUBEVIRTS, {"metadata": {"name": names.KUBEVIRT_NAME}, "spec": {}}, names.NAMESPACE)
    await open_node(admin, parts.node_name)
    supervisor = Supervisor()
    stack.push_async_callback(supervisor.stop)
    for name, run_part in parts.all().items():
        supervisor.start(name, run_part)
    try:
        async with asyncio.timeout(READY_WITHIN):
            await parts.ready()
    except TimeoutError:
        raise Refusal(
            f"Hotvirt was not ready within {READY_WITHIN:.0f} s; {state.log} says what it waited for."
        ) from None
    return Started(server.url, admin), supervisor


async def make(client: Client, resource: Resource, obj: dict[str, Any], namespace: str | None = None) -> None:
    try:
        await client.create(
            resource, {"apiVersion": resource.api_version, "kind": resource.kind, **obj}, namespace
        )
    except AlreadyExists:
        log.debug("%s %s is there", resource.kind, obj["metadata"]["name"])


async def open_node(client: Client, name: str) -> None:
    """Undo what `hotvirt down --stop-vms` did, and only that: a node that an admin closed stays closed."""
    try:
        node = await client.get(NODES, name)
    except NotFound:
        return
    if ANNOTATION_CLOSED in (node["metadata"].get("annotations") or {}):
        patch = {"metadata": {"annotations": {ANNOTATION_CLOSED: None}}, "spec": {"unschedulable": None}}
        try:
            await client.patch(NODES, name, patch)
        except ApiError as error:
            log.warning("node %s stays closed: %s", name, error)


def node_name(state: StateDir) -> str:
    """The host's name, as it was at the first start: Pods are bound to it."""
    file = state.path / "node"
    if file.exists():
        return file.read_text().strip()
    name = re.sub(r"[^a-z0-9.-]+", "-", platform.node().lower()).strip("-.")[:63] or "node"
    write_atomically(file, f"{name}\n".encode(), 0o644)
    return name


def log_to(path: Path) -> None:
    handler = RotatingFileHandler(path, maxBytes=LOG_SIZE, backupCount=LOG_FILES)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(os.environ.get("HOTVIRT_LOG", "INFO").upper())
