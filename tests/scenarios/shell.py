"""A root shell on a guest's serial console, as `hotvirt console` has it; and its log."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import aiohttp

from hotvirt.api.resources import VMIS
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig
from tests.targets.target import pause_after_look, wait_until

from .place import Place

WITHIN = 180.0
PASSWORD = "hotvirt"
PROMPT = r"# (?:\x1b\[6n)?$"
"""busybox asks the terminal where its cursor is."""


def in_guest(place: Place, namespace: str, name: str, command: str) -> str:
    """What the command printed on the guest's console."""
    return asyncio.run(run_in_guest(place, namespace, name, command))


async def run_in_guest(place: Place, namespace: str, name: str, command: str) -> str:
    path = VMIS.path(namespace, name, "console").replace("kubevirt.io", "subresources.kubevirt.io", 1)
    async with Client(load_kubeconfig(place.kubeconfig)) as client, asyncio.timeout(WITHIN):
        socket = await client.connect_ws(path, ("plain.kubevirt.io",))
        try:
            shell = _Shell(socket)
            await shell.log_in()
            return await shell.run(command)
        finally:
            await socket.close()


class _Shell:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._seen = ""

    async def log_in(self) -> None:
        prompt = ""
        while not prompt or not await self._answers():
            # A guest that is still booting throws away what is typed: type again.
            await self._type("\r")
            prompt = await self._expect(rf"login: $|{PROMPT}", within=3.0)
            if "login" in prompt:
                await self._type("root\r")
                await self._expect("assword: ")
                await self._type(f"{PASSWORD}\r")
                await self._expect(PROMPT)

    async def _answers(self) -> bool:
        """Whether somebody does what is typed: a prompt may be the last of a shell that was told to exit."""
        await self._type("printf 'HE%s\\n' RE\r")
        return bool(await self._expect("HERE\r?\n", within=10.0))

    async def run(self, command: str) -> str:
        # The words are put together by the shell, so that the echo of what is typed does not have them.
        await self._type(f"printf 'BE%s\\n' GIN; {command}; printf 'E%s\\n' ND\r")
        await self._expect("BEGIN\r?\n")
        printed = await self._expect("(?s).*?END\r?\n")
        await self._type("exit\r")
        return re.sub(r"END\r?\n$", "", printed).replace("\r\n", "\n").strip()

    async def _type(self, text: str) -> None:
        await self._socket.send_bytes(text.encode())

    async def _expect(self, pattern: str, within: float | None = None) -> str:
        """The text up to the pattern, with it; empty when it does not come in time."""
        try:
            async with asyncio.timeout(within):
                while not (match := re.search(pattern, self._seen)):
                    message = await self._socket.receive()
                    if message.type is not aiohttp.WSMsgType.BINARY:
                        raise AssertionError(f"the console ended before {pattern!r}: {self._seen[-500:]!r}")
                    self._seen += message.data.decode(errors="replace")
        except TimeoutError:
            return ""
        except asyncio.CancelledError:
            print(f"{pattern!r} did not come; this did: {self._seen[-500:]!r}")
            raise
        self._seen = self._seen[match.end() :]
        return match.group(0)


def console_log(place: Place, namespace: str, name: str) -> str:
    selector = f"vm.kubevirt.io/name={name}"
    return place.kubectl("logs", "-n", namespace, "-l", selector, "-c", "guest-console-log", "--tail=-1")


def wait_for(place: Place, namespace: str, what: str, condition: str, within: int = 240) -> None:
    """`kubectl wait`, as a user does it; again while a controller has yet to make what it asks for."""
    deadline = time.monotonic() + within
    while True:
        looked = time.monotonic()
        left = max(1, round(deadline - looked))
        done = place.ask_kubectl(
            "wait", "-n", namespace, what, f"--for={condition}", f"--timeout={left}s", timeout=left + 60
        )
        if done.returncode == 0:
            return
        said = f"kubectl wait {what} --for={condition}: {done.stderr}"
        assert "(NotFound)" in done.stderr and looked < deadline, said
        pause_after_look(looked)


def wait_for_another(place: Place, namespace: str, name: str, old: str, within: float = 240.0) -> None:
    """Wait for a VMI of that name with another uid: `kubectl wait` would be content with the old one."""
    look = ("get", "vmi", name, "-n", namespace, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
    wait_until(lambda: place.kubectl(*look) not in ("", old), f"another VMI {name} than {old}", within)


def wait_for_status(place: Place, namespace: str, name: str, word: str, within: int = 240) -> None:
    wait_for(place, namespace, f"vm/{name}", f"jsonpath={{.status.printableStatus}}={word}", within)


def vmi_of(place: Place, namespace: str, name: str) -> dict[str, Any]:
    return place.get("vmi", name, "-n", namespace)


def boot_id(place: Place, namespace: str, name: str) -> str:
    found = vmi_of(place, namespace, name)["status"]["hotvirt"]["bootId"]
    assert found
    return str(found)
