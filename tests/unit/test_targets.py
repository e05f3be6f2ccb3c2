"""What the tests stand on: ports that are nobody else's."""

from __future__ import annotations

import socket

import pytest

from tests.targets import target
from tests.targets.target import free_ports


def test_a_port_is_given_once_even_if_nobody_listens_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    (given,) = free_ports(1)
    monkeypatch.setattr(target, "FIXED_PORTS", range(given, given + 1))
    with pytest.raises(RuntimeError, match="No 1 ports are free"):
        free_ports(1)


def test_a_port_where_somebody_listens_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        monkeypatch.setattr(target, "FIXED_PORTS", range(port, port + 1))
        with pytest.raises(RuntimeError, match="No 1 ports are free"):
            free_ports(1)
