"""Serial consoles between the controllers, which users reach, and the node agents, which have them.

The agent makes its own key and self-signed certificate at start, and tells in its Lease where it listens and
what its certificate is; it takes clients that show a certificate of Hotvirt's CA for Hotvirt's own name. So
both sides know each other, and no node holds a secret of another. A client says in one line which machine it
wants, and is answered in one line; after that the bytes are the console's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hotvirt.api import names
from hotvirt.api.core import ConfigMap
from hotvirt.api.resources import CONFIGMAPS, LEASES, VMIS
from hotvirt.kube.client import Client
from hotvirt.kube.config import memory_file
from hotvirt.kube.errors import NotFound
from hotvirt.kube.x509 import SERVER, Pair, fingerprint, make, name, server_context

from .certificates import CA, Source, only
from .lifetimes import SERVED_NAMES
from .listener import Listener

log = logging.getLogger(__name__)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OpenConsole = Callable[[str, str], Awaitable[Stream]]
LONGEST_LINE: Final = 4096
ASK_WITHIN: Final = 10.0
CHUNK: Final = 32 * 1024
VALID: Final = timedelta(days=3650)
"""It ends with the process, which makes another at each start."""
NO_LINE: Final = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, TypeError)
"""What was to be one line of JSON is none, or has no end."""


class ConsoleServer:
    """The agent's end."""

    def __init__(self, client: Client, node: str, address: str, port: int, open_console: OpenConsole) -> None:
        self._open_console = open_console
        self._informer = only(client, CONFIGMAPS, ConfigMap, names.CA_CONFIGMAP, names.NAMESPACE)
        self._pair: Pair = make(None, name(f"hotvirt-node {node}"[:64]), VALID, datetime.now(UTC), [SERVER])
        self._listener = Listener(address, port, self._protocol)
        self._changed = asyncio.Event()
        self._sessions: set[asyncio.Task[None]] = set()
        self.trusted: bytes | None = None
        """The CAs that clients are known by now."""

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def is_open(self) -> bool:
        return self._listener.is_open

    @property
    def fingerprint(self) -> str:
        return fingerprint(ssl.PEM_cert_to_DER_cert(self._pair.certificate_pem.decode()))

    async def run(self, opened: Callable[[], None]) -> None:
        """Serve as soon as there is a CA to know the controllers by; tells each time that one is used."""
        self._informer.add_handler(lambda _old, _new: self._changed.set())
        following = asyncio.create_task(self._informer.run())
        try:
            while True:
                self._changed.clear()
                ca = self._ca()
                if ca is not None and ca != self.trusted:
                    try:
                        await self._listener.use(self._context(ca))
                        self.trusted = ca
                        opened()
                    except ssl.SSLError as error:
                        log.error("the CA in ConfigMap %s cannot be used: %s", names.CA_CONFIGMAP, error)
                await self._changed.wait()
        finally:
            following.cancel()
            self._listener.close()
            for session in self._sessions:
                session.cancel()
            await asyncio.wait([following, *self._sessions])

    def _ca(self) -> bytes | None:
        config_map = self._informer.get(names.NAMESPACE, names.CA_CONFIGMAP)
        text = config_map.data.get(CA, "") if config_map is not None else ""
        return text.encode() or None

    def _context(self, ca: bytes) -> ssl.SSLContext:
        context = server_context(self._pair.certificate_pem, self._pair.key_pem, ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=LONGEST_LINE * 16)
        return asyncio.StreamReaderProtocol(reader, self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = asyncio.create_task(self._serve(reader, writer))
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (OSError, TimeoutError, KeyError, *NO_LINE) as error:
            log.info("a console ended: %r", error)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_controller(writer.get_extra_info("peercert") or {}):
            log.warning("a console was refused: the client's certificate is not that of Hotvirt's controller")
            return
        async with asyncio.timeout(ASK_WITHIN):
            wish = json.loads(await reader.readuntil(b"\n"))
        try:
            async with asyncio.timeout(ASK_WITHIN):
                theirs = await self._open_console(str(wish["namespace"]), str(wish["name"]))
        except (LookupError, OSError, TimeoutError) as error:
            writer.write(_line({"error": str(error) or "the machine's console does not answer"}))
            await writer.drain()
            return
        try:
            writer.write(_line({}))
            await relay((reader, writer), theirs)
        finally:
            theirs[1].close()


def is_controller(peer: dict[str, Any]) -> bool:
    """A given CA may certify others too: only the name of Hotvirt's own service counts."""
    return ("DNS", SERVED_NAMES[0]) in peer.get("subjectAltName", ())


async def relay(one: Stream, other: Stream) -> None:
    """Bytes both ways, until one side ends."""
    ways = {asyncio.create_task(_pump(one[0], other[1])), asyncio.create_task(_pump(other[0], one[1]))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


class ClusterStreams:
    """The controllers' end: finds the agent of a machine's node by its Lease."""

    def __init__(self, client: Client, source: Source) -> None:
        self._client = client
        self._source = source

    async def open_console(self, namespace: str, name: str) -> Stream:
        """LookupError: nobody has it; OSError: it cannot be reached."""
        vmi = await self._client.get(VMIS, name, namespace)
        node = str((vmi.get("status") or {}).get("nodeName") or "")
        if not node:
            raise LookupError("the machine is on no node")
        host, port, pinned = await self._agent_of(node)
        reader, writer = await asyncio.open_connection(host, port, ssl=self._context())
        try:
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if certificate is None or fingerprint(certificate) != pinned:
                raise ConnectionError(f"whoever answers for node {node} is not its agent")
            writer.write(_line({"namespace": namespace, "name": name}))
            answer = dict(json.loads(await reader.readuntil(b"\n")))
            if answer.get("error"):
                raise LookupError(str(answer["error"]))
        except BaseException as error:
            writer.close()
            if isinstance(error, NO_LINE):
                raise ConnectionError(f"the agent of node {node} gave no answer") from error
            raise
        return reader, writer

    async def _agent_of(self, node: str) -> tuple[str, int, str]:
        try:
            lease = await self._client.get(LEASES, names.NODE_LEASE.format(node=node), names.NAMESPACE)
        except NotFound:
            raise LookupError(f"node {node} has no agent of Hotvirt") from None
        annotations = lease["metadata"].get("annotations") or {}
        address = str(annotations.get(names.ANNOTATION_CONSOLE_ADDRESS) or "")
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal():
            raise LookupError(f"the agent of node {node} has not said yet where its consoles are")
        return host.strip("[]"), int(port), str(annotations.get(names.ANNOTATION_CONSOLE_CERTIFICATE))

    def _context(self) -> ssl.SSLContext:
        shown = self._source.shown
        if shown is None:
            raise LookupError("there is no certificate to show to the node's agent yet")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The agent's certificate is its own: it is known by its fingerprint, not by a CA.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with memory_file(shown.chain + b"\n" + shown.key) as path:
            context.load_cert_chain(path)
        return context
