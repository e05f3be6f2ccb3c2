"""Certificates and tokens, by real TLS between a real server and our client."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hotvirt.embedded.pki import Pki, User
from hotvirt.embedded.state import StateError
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig


async def serve(pki: Pki) -> tuple[web.AppRunner, int, list[Any]]:
    peers: list[Any] = []

    async def hello(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peercert"))
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/version", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=pki.server_context()).start()
    return runner, runner.addresses[0][1], peers


async def test_the_kubeconfig_logs_in_as_the_admin(tmp_path: Path) -> None:
    pki = Pki.open(tmp_path / "pki")
    runner, port, peers = await serve(pki)
    path = tmp_path / "kubeconfig"
    pki.write_kubeconfig(path, f"https://127.0.0.1:{port}")
    assert path.stat().st_mode & 0o777 == 0o600
    async with Client(load_kubeconfig(path)) as client:
        await client.request("GET", "/version")
    subject = {key: value for part in peers[0]["subject"] for key, value in part}
    assert subject == {"organizationName": "system:masters", "commonName": "hotvirt-admin"}
    await runner.cleanup()


async def test_all_names_of_the_server_are_certified(tmp_path: Path) -> None:
    pki = Pki.open(tmp_path)
    runner, port, peers = await serve(pki)
    import asyncio

    for name in ("localhost", "127.0.0.1", "::1", "kubernetes.default.svc"):
        context = ssl.create_default_context(cadata=pki.ca_pem.decode())
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.close()
        await writer.wait_closed()
    assert peers == []
    await runner.cleanup()


def test_what_is_there_is_kept_and_renewed_in_time(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    Pki.open(tmp_path, start)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert sorted(files) == ["admin.pem", "ca.pem", "server.pem"]
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}

    def changed() -> list[str]:
        return sorted(name for name, old in files.items() if (tmp_path / name).read_bytes() != old)

    Pki.open(tmp_path, start + timedelta(days=699))
    assert changed() == []
    Pki.open(tmp_path, start + timedelta(days=701))
    assert changed() == ["admin.pem", "server.pem"]
    Pki.open(tmp_path, start + timedelta(days=3621))
    assert changed() == ["admin.pem", "ca.pem", "server.pem"]


def test_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens.csv").write_text('abc,jane,u1,"dev,ops"\nxyz,joe,u2\n')
    pki = Pki.open(tmp_path)
    assert pki.user_of_token("abc") == User("jane", ("dev", "ops"), "u1")
    assert pki.user_of_token("xyz") == User("joe", (), "u2")
    assert pki.user_of_token("") is None
    token = pki.token_for("component", ("system:masters",))
    assert pki.user_of_token(token) == User("component", ("system:masters",))
    assert Pki.open(tmp_path).user_of_token(token) is None


@pytest.mark.parametrize(("file", "content"), [("ca.pem", "rubbish"), ("tokens.csv", "only-a-token\n")])
def test_a_broken_file_is_a_sentence(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(StateError, match="cannot be used"):
        Pki.open(tmp_path)
