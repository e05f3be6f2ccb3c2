"""`/dev/kvm` as a device of the node: a plug-in of the kubelet (device plug-in API v1beta1).

So a VM's Pod needs no hostPath and no privilege to use KVM, and the scheduler puts it on nodes that have it.
The node offers the device only when a guest was seen to start with KVM there. The messages are few and flat:
they are written and read here, without generated code. gRPC is imported when it is needed first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hotvirt.api.names import KVM_RESOURCE
from hotvirt.node.inotify import FolderWatch

if TYPE_CHECKING:
    import grpc.aio

log = logging.getLogger(__name__)

PLUGIN_FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
"""The kubelet's, whatever its root folder is."""
KUBELET_SOCKET: Final = "kubelet.sock"
KVM_DEVICE: Final = "/dev/kvm"
COUNT: Final = 1000
"""How many Pods may have it at a time: it is not used up, but the kubelet counts devices."""
EVERYBODY_MAY: Final = 0o666
REGISTER_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 5.0

_VERSION: Final = "v1beta1"
_SERVICE: Final = f"{_VERSION}.DevicePlugin"
_EMPTY: Final = b""


class DevicePlugin:
    """Offers one device of the node under a resource name, for as long as `run` runs."""

    def __init__(
        self,
        resource: str = KVM_RESOURCE,
        device: str = KVM_DEVICE,
        *,
        folder: Path = PLUGIN_FOLDER,
        count: int = COUNT,
    ) -> None:
        self._resource = resource
        self._device = device
        self._folder = folder
        self._count = count
        self._socket = folder / f"hotvirt-{resource.rpartition('/')[2]}.sock"

    async def run(self) -> None:
        """Serve, and register again whenever the kubelet starts again: it forgets its plug-ins then."""
        stirred = asyncio.Event()
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        watch = FolderWatch()
        try:
            watch.watch(folder, stirred.set)
            while True:
                await self._serve_one_kubelet(stirred)
        finally:
            watch.close()
            os.close(folder)

    async def _serve_one_kubelet(self, stirred: asyncio.Event) -> None:
        stirred.clear()
        kubelet = self._kubelet()
        if kubelet is None:
            await stirred.wait()
            return
        async with self._serving():
            problem = await self._register()
            if problem:
                log.warning("the kubelet did not take %s: %s", self._resource, problem)
                # Its socket may be there before it answers, and there is no event for that.
                await _wait(stirred, RETRY_SECONDS)
                return
            log.info("the kubelet offers %s (%s)", self._resource, self._device)
            while self._kubelet() == kubelet and self._socket.exists():
                await stirred.wait()
                stirred.clear()

    def _kubelet(self) -> tuple[int, int] | None:
        """Which start of the kubelet this is."""
        try:
            found = (self._folder / KUBELET_SOCKET).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_ctime_ns

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        import grpc.aio

        self._socket.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handlers(),))
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)
            self._socket.unlink(missing_ok=True)

    def _handlers(self) -> grpc.GenericRpcHandler:
        import grpc

        def answering(answer: Callable[[bytes], bytes]) -> grpc.RpcMethodHandler[bytes, bytes]:
            async def call(request: bytes, _context: Any) -> bytes:
                return answer(request)

            return grpc.unary_unary_rpc_method_handler(call)

        methods = {
            "GetDevicePluginOptions": answering(lambda _: _EMPTY),
            "GetPreferredAllocation": answering(lambda _: _EMPTY),
            "PreStartContainer": answering(lambda _: _EMPTY),
            "Allocate": answering(self.allocated),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    async def _list_and_watch(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        """The devices, once; nothing about them changes while this runs. The kubelet ends it."""
        yield self.devices()
        await asyncio.Event().wait()

    async def _register(self) -> str:
        """An empty text when it is done, else why not."""
        import grpc

        request = _text(1, _VERSION) + _text(2, self._socket.name) + _text(3, self._resource)
        async with grpc.aio.insecure_channel(f"unix:{self._folder / KUBELET_SOCKET}") as channel:
            register: Callable[..., Awaitable[bytes]] = channel.unary_unary(
                f"/{_VERSION}.Registration/Register"
            )
            try:
                await register(request, timeout=REGISTER_SECONDS, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                return error.details() or str(error.code())
        return ""

    # The messages of the API, in protobuf's wire format

    def devices(self) -> bytes:
        """ListAndWatchResponse: every device by its id, healthy."""
        return b"".join(
            _field(1, _text(1, f"{number}") + _text(2, "Healthy")) for number in range(self._count)
        )

    def allocated(self, request: bytes) -> bytes:
        """AllocateResponse: the same device node for each container of an AllocateRequest."""
        device = _text(1, self._device) + _text(2, self._device) + _text(3, "rw")
        return b"".join(_field(1, _field(3, device)) for number, _ in _fields(request) if number == 1)


async def offer_kvm(accelerator: Callable[[], Awaitable[str]], plugin: DevicePlugin | None = None) -> None:
    """Offer /dev/kvm where a guest starts with it; else nothing, for ever."""
    if await accelerator() != "kvm":
        log.info("no guest starts with KVM on this node: it offers no %s", KVM_RESOURCE)
        await asyncio.Event().wait()
    while True:
        try:
            open_to_launchers(node_path(KVM_DEVICE))
            await (plugin or DevicePlugin()).run()
        except OSError as error:
            # The rest of the agent does without it, so this is tried again: what is missing has no event.
            log.warning("this node cannot offer %s: %s", KVM_RESOURCE, error)
            await asyncio.sleep(RETRY_SECONDS)


def node_path(device: str) -> Path:
    """The node's own device, also from inside the agent's container: through the node's first process."""
    return Path("/proc/1/root") / device.lstrip("/")


def open_to_launchers(device: Path) -> None:
    """Let every user open it, as most distributions do: launchers are not root. A Pod sees it if it asks."""
    mode = stat.S_IMODE(device.stat().st_mode)
    if mode & EVERYBODY_MAY != EVERYBODY_MAY:
        device.chmod(mode | EVERYBODY_MAY)
        log.info("%s may be opened by every user now: launchers run without root", device)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    """A field of the kind that everything here is: bytes with their length in front."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _fields(message: bytes) -> list[tuple[int, bytes]]:
    """The fields of a message that has only such. Raises ValueError when it has others."""
    found, at = [], 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        if tag & 7 != 2:
            raise ValueError("a field of a kind that this API does not have")
        length, at = _read_varint(message, at)
        if at + length > len(message):
            raise ValueError("a message that ends within a field")
        found.append((tag >> 3, message[at : at + length]))
        at += length
    return found


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
    raise ValueError("a message that ends within a number")
