"""The client against a real HTTP server: paging, refusals, Retry-After, warnings, sockets, tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hotvirt.api.core import ConfigMap
from hotvirt.api.resources import CONFIGMAPS, PODS
from hotvirt.kube import errors
from hotvirt.kube.client import Client
from hotvirt.kube.config import ClientConfig
from hotvirt.kube.transport import RateLimit, Transport

from .tiny_api import TinyApi, config_map, status


async def test_a_list_comes_in_pages_of_one_moment() -> None:
    api = TinyApi()
    for number in range(25):
        await api.put("configmaps", config_map(f"c{number:02}"))
    async with api.running() as config, Client(config) as client:
        found = await client.list(CONFIGMAPS, "default", cls=ConfigMap, limit=10)
        assert [item.metadata.name for item in found.items] == [f"c{number:02}" for number in range(25)]
        assert found.resource_version == "125"
        assert [request.query.get("continue") for request in api.requests] == [None, "125-10", "125-20"]
        plain = await client.list(CONFIGMAPS)
        assert plain.items[0]["kind"] == "ConfigMap"
        assert plain.items[0]["apiVersion"] == "v1"


async def test_an_expired_continue_token_starts_the_list_again_in_one_piece() -> None:
    api = TinyApi()
    for number in range(5):
        await api.put("configmaps", config_map(f"c{number}"))

    async def expire_after_first_page(request: web.Request) -> web.StreamResponse | None:
        if request.query.get("continue"):
            api.forget_history()
            api.interfere = None
        return None

    api.interfere = expire_after_first_page
    async with api.running() as config, Client(config) as client:
        found = await client.list(CONFIGMAPS, limit=2)
        assert [item["metadata"]["name"] for item in found.items] == [f"c{number}" for number in range(5)]
        assert api.requests[-1].query.get("limit") is None


async def test_create_get_patch_delete() -> None:
    api = TinyApi()
    async with api.running() as config, Client(config) as client:
        made = await client.create(CONFIGMAPS, config_map("one", a="1"), "default", cls=ConfigMap)
        assert made.data == {"a": "1"}
        patched = await client.patch(CONFIGMAPS, "one", {"data": {"a": None, "b": "2"}}, "default")
        assert patched["data"] == {"b": "2"}
        assert api.requests[-1].content_type == "application/merge-patch+json"
        read = await client.get(CONFIGMAPS, "one", "default", cls=ConfigMap)
        assert read.data == {"b": "2"}
        await client.delete(CONFIGMAPS, "one", "default", uid="uid-one", grace=0, propagation="Foreground")
        with pytest.raises(errors.NotFound) as missing:
            await client.get(CONFIGMAPS, "one", "default")
        assert missing.value.message == 'configmaps "one" not found'


async def test_dry_run_patch_kinds_and_subresources_reach_the_wire() -> None:
    seen: list[tuple[str, str, str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse | None:
        dry_run = request.query.get("dryRun", "")
        seen.append((request.path, request.content_type, dry_run, await request.json()))
        return web.json_response({})

    api = TinyApi()
    api.interfere = answer
    async with api.running() as config, Client(config) as client:
        pod = {"metadata": {"name": "p"}}
        await client.patch(PODS, "p", pod, "ns", kind="strategic", subresource="resize", dry_run=True)
        await client.patch(PODS, "p", [], "ns", kind="json", subresource="status")
        await client.create(PODS, {"target": {}}, "ns", name="p", subresource="binding")
        await client.update(PODS, pod, "ns", subresource="status")
    assert seen == [
        (
            "/api/v1/namespaces/ns/pods/p/resize",
            "application/strategic-merge-patch+json",
            "All",
            {"metadata": {"name": "p"}},
        ),
        ("/api/v1/namespaces/ns/pods/p/status", "application/json-patch+json", "", []),
        ("/api/v1/namespaces/ns/pods/p/binding", "application/json", "", {"target": {}}),
        ("/api/v1/namespaces/ns/pods/p/status", "application/json", "", {"metadata": {"name": "p"}}),
    ]


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (503, "", errors.ServerError),
    ],
)
async def test_each_refusal_is_its_own_exception(code: int, reason: str, kind: type[Exception]) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return status(code, reason, "because")

    api = TinyApi()
    api.interfere = refuse
    async with api.running() as config, Client(config) as client:
        with pytest.raises(kind) as refused:
            await client.get(CONFIGMAPS, "x", "default")
    assert type(refused.value) is kind
    assert isinstance(refused.value, errors.ApiError)
    assert (refused.value.code, refused.value.message) == (code, "because")
    assert refused.value.status()["code"] == code


async def test_retry_after_is_honoured() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("one"))
    answers = [429, 503]

    async def busy(request: web.Request) -> web.StreamResponse | None:
        if not answers:
            return None
        return status(answers.pop(0), "TooManyRequests", "busy", {"Retry-After": "3"})

    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    api.interfere = busy
    async with api.running() as config:
        client = Client(config, transport=Transport(config, "test", sleep=sleep))
        async with client:
            assert (await client.get(CONFIGMAPS, "one", "default"))["metadata"]["name"] == "one"
    assert waits == [3.0, 3.0]


async def test_nobody_listening_is_a_sentence() -> None:
    async with Client(ClientConfig(server="http://127.0.0.1:1")) as client:
        with pytest.raises(errors.Unreachable, match=r"127\.0\.0\.1:1 cannot be reached"):
            await client.get(CONFIGMAPS, "x", "default")


async def test_an_answer_that_does_not_come_is_given_up() -> None:
    async def hang(request: web.Request) -> web.StreamResponse | None:
        await asyncio.Event().wait()
        return None

    api = TinyApi()
    api.interfere = hang
    async with api.running() as config, Client(config, timeout=0.05) as client:
        with pytest.raises(errors.Unreachable, match="No answer"):
            await client.get(CONFIGMAPS, "x", "default")


async def test_admission_warnings_reach_the_callback() -> None:
    async def warn(request: web.Request) -> web.StreamResponse:
        response = web.json_response({})
        response.headers.add("Warning", '299 - "sockets 1\\"2: live"')
        response.headers.add("Warning", '299 - "one", 299 - "two"')
        return response

    api = TinyApi()
    api.interfere = warn
    heard: list[str] = []
    async with api.running() as config, Client(config) as client:
        client.on_warning = heard.append
        await client.create(CONFIGMAPS, config_map("x"), "default")
    assert heard == ['sockets 1"2: live', "one", "two"]


async def test_a_socket_with_a_path_too_long_for_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    (tmp_path / "short").symlink_to(folder)
    api = TinyApi()
    await api.put("configmaps", config_map("one"))
    async with api.running(tmp_path / "short" / "api.sock"):
        socket = folder / "api.sock"
        assert len(str(socket)) > 107
        async with Client(ClientConfig(unix_socket=socket, token="secret")) as client:
            assert (await client.get(CONFIGMAPS, "one", "default"))["metadata"]["name"] == "one"
            assert api.requests[-1].headers["Authorization"] == "Bearer secret"


async def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    api = TinyApi()
    await api.put("configmaps", config_map("one"))
    async with (
        api.running() as config,
        Client(ClientConfig(server=config.server, token_file=token)) as client,
    ):
        for text in ("first", "second"):
            token.write_text(text + "\n")
            await client.get(CONFIGMAPS, "one", "default")
            assert api.requests[-1].headers["Authorization"] == f"Bearer {text}"


async def test_other_requests_and_lines() -> None:
    async def answer(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1"})
        if request.path == "/log":
            response = web.StreamResponse()
            await response.prepare(request)
            for part in (b"one\ntw", b"o\n", b"\nthr", b"ee"):
                await response.write(part)
            return response
        return None

    api = TinyApi()
    api.interfere = answer
    async with api.running() as config, Client(config) as client:
        assert await client.request("GET", "/version") == {"gitVersion": "v1"}
        assert await client.request("GET", "/version", cls=bytes) == b'{"gitVersion": "v1"}'
        assert [line async for line in client.lines("GET", "/log")] == [b"one", b"two", b"three"]


async def test_websockets_with_a_protocol() -> None:
    async def echo(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/refused":
            return status(404, "NotFound", "no such console")
        ws = web.WebSocketResponse(protocols=("plain.kubevirt.io",))
        await ws.prepare(request)
        async for message in ws:
            await ws.send_bytes(message.data)
        return ws

    api = TinyApi()
    api.interfere = echo
    async with api.running() as config, Client(config) as client:
        ws = await client.connect_ws("/console", ("plain.kubevirt.io",))
        assert ws.protocol == "plain.kubevirt.io"
        await ws.send_bytes(b"hello")
        assert (await ws.receive_bytes()) == b"hello"
        await ws.close()
        with pytest.raises(errors.NotFound):
            await client.connect_ws("/refused")


def test_the_rate_limit_allows_the_burst_and_then_spaces_requests() -> None:
    now = 0.0
    limit = RateLimit(qps=10, burst=3, clock=lambda: now)
    assert [limit.reserve() for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    now = 10.0
    assert [limit.allow() for _ in range(4)] == [True, True, True, False]


async def test_requests_are_counted_under_client_gos_names() -> None:
    from prometheus_client import REGISTRY

    api = TinyApi()
    await api.put("configmaps", config_map("one"))
    async with api.running() as config, Client(config) as client:
        host = config.server.removeprefix("http://")

        def counted() -> list[float]:
            asked = {"code": "200", "method": "GET", "host": host}
            lasted = {"verb": "GET", "host": host}
            return [
                REGISTRY.get_sample_value("rest_client_requests_total", asked) or 0,
                REGISTRY.get_sample_value("rest_client_request_duration_seconds_count", lasted) or 0,
            ]

        before = counted()  # the port may have been that of a server of another test
        await client.get(CONFIGMAPS, "one", "default")
        assert counted() == [number + 1 for number in before]
