"""A hand-over that fails half-way leaves nothing open."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from hotvirt.hypervisor.files import LAUNCHER_SOCKET
from hotvirt.hypervisor.instant import InstantDriver
from hotvirt.node import handover
from hotvirt.node.handover import Given, hand_over


class Broken(InstantDriver):
    async def version(self) -> tuple[int, ...]:
        raise RuntimeError("it does not say its version")


@pytest.mark.asyncio
async def test_the_dhcp_socket_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    async def made(*_arguments: Any) -> Given:
        """In place of a tap in the network of a Pod, which takes root and a Pod."""
        return Given("tcg", {"kind": "tap"}, served)

    monkeypatch.setattr(handover, "_network_for", made)
    monkeypatch.setattr(handover, "peer_network", lambda *_: None)
    folder = os.open(tmp_path, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.bind(f"/proc/self/fd/{folder}/{LAUNCHER_SOCKET}")
        launcher.listen()
        try:
            with pytest.raises(RuntimeError, match="does not say its version"):
                await hand_over(folder, Broken(), None, "10.0.0.1", "uid", lambda *_: True)  # type: ignore[arg-type]  # the machine is only looked at for its network
        finally:
            os.close(folder)
    assert served.fileno() == -1
