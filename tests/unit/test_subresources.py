"""The verbs of virtctl against the real API: every code of the table in docs/lifecycle.md."""

import asyncio
import json

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from hotvirt.api import names
from hotvirt.api.resources import VMIS, VMS
from hotvirt.subresources.app import make_app
from tests.inprocess import api, quick_folder, vm_manifest
from tests.kube import condition

PREFIX = "/apis/subresources.kubevirt.io"


class Echo:
    """A console that says what it hears."""

    def __init__(self) -> None:
        self.path = ""

    async def open_console(self, namespace, name):
        if not self.path:
            raise ConnectionRefusedError("nobody listens")
        return await asyncio.open_unix_connection(self.path)


class Served:
    def __init__(self, cluster, session, url, streams) -> None:
        self.cluster, self.session, self.url, self.streams = cluster, session, url, streams

    @property
    def place(self) -> str:
        return f"/namespaces/{self.cluster.namespace}"

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict]:
        """As virtctl: JSON that does not say so."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": ""} if data is None else {}
        async with self.session.request(
            method,
            f"{self.url}{PREFIX}/v1{path}",
            data=data,
            headers=headers,
            skip_auto_headers=["Content-Type"],
        ) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else {}

    async def vm(self, verb: str, body: object = None, name: str = "one") -> tuple[int, dict]:
        return await self.ask("PUT", f"{self.place}/virtualmachines/{name}/{verb}", body)

    async def vmi(self, verb: str, body: object = None, method: str = "PUT") -> tuple[int, dict]:
        return await self.ask(method, f"{self.place}/virtualmachineinstances/one/{verb}", body)

    async def make(self, strategy: str, phase: str | None = None, **status: object) -> dict:
        """A VM, and a VMI in that phase."""
        manifest = vm_manifest("one", strategy)
        vm = await self.cluster.create(VMS, manifest)
        if phase is not None:
            spec = manifest["spec"]["template"]["spec"]
            await self.cluster.create(VMIS, {"metadata": {"name": "one"}, "spec": spec})
            await self.cluster.patch(VMIS, "one", {"status": {"phase": phase, **status}}, status=True)
        return vm

    async def requests(self) -> list[dict]:
        return (await self.cluster.get(VMS, "one")).get("status", {}).get("stateChangeRequests", [])

    async def uid(self) -> str:
        return (await self.cluster.get(VMIS, "one"))["metadata"]["uid"]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared():
    with quick_folder() as folder:
        async with api(folder) as cluster, aiohttp.ClientSession() as session:
            streams = Echo()
            outer = web.Application()
            outer.add_subapp(PREFIX, make_app(cluster.client(names.API_USER), streams))
            runner = web.AppRunner(outer)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield Served(cluster, session, f"http://127.0.0.1:{runner.addresses[0][1]}", streams)
            await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="module")
async def served(shared):
    await shared.cluster.fresh_namespace()
    shared.streams.path = ""
    return shared


async def test_start_of_a_halted_vm_switches_its_strategy(served):
    await served.make("Halted")
    assert (await served.vm("start"))[0] == 202
    assert (await served.cluster.get(VMS, "one"))["spec"]["runStrategy"] == "Always"


async def test_start_writes_the_words_that_the_owner_uses(served):
    manifest = vm_manifest("one")
    del manifest["spec"]["runStrategy"]
    manifest["spec"]["running"] = False
    await served.cluster.create(VMS, manifest)
    assert (await served.vm("start", {}))[0] == 202
    spec = (await served.cluster.get(VMS, "one"))["spec"]
    assert spec["running"] is True
    assert "runStrategy" not in spec


async def test_a_paused_start_is_queued(served):
    await served.make("Halted")
    assert (await served.vm("start", {"paused": True}))[0] == 202
    assert await served.requests() == [{"action": "Start", "data": {"paused": "true"}}]


async def test_start_of_a_manual_vm_is_queued_and_clears_the_failures(served):
    await served.make("Manual")
    await served.cluster.patch(
        VMS, "one", {"status": {"startFailure": {"consecutiveFailCount": 3}}}, status=True
    )
    assert (await served.vm("start"))[0] == 202
    vm = await served.cluster.get(VMS, "one")
    assert vm["status"]["stateChangeRequests"] == [{"action": "Start"}]
    assert "startFailure" not in vm["status"]


async def test_start_after_the_end_stops_what_is_left_first(served):
    await served.make("Manual", "Succeeded")
    assert (await served.vm("start"))[0] == 202
    assert await served.requests() == [{"action": "Stop", "uid": await served.uid()}, {"action": "Start"}]


@pytest.mark.parametrize(
    ("verb", "strategy", "phase", "says"),
    [
        ("start", "Manual", "Running", "already running"),
        ("start", "Always", None, "does not support manual start"),
        ("start", "Once", "Succeeded", "does not support manual start"),
        ("start", "RerunOnFailure", "Failed", "from failed state"),
        ("stop", "Halted", None, "not running"),
        ("stop", "Halted", "Running", "shorter graceperiod"),
        ("stop", "Manual", None, "not running"),
        ("stop", "RerunOnFailure", "Succeeded", "not running"),
        ("restart", "Halted", "Running", "does not support manual restart"),
        ("restart", "Once", "Running", "does not support manual restart"),
        ("restart", "Always", None, "not running"),
    ],
)
async def test_what_cannot_be_done_now_is_a_conflict(served, verb, strategy, phase, says):
    await served.make(strategy, phase)
    code, status = await served.vm(verb)
    assert (code, status["kind"], status["reason"], status["code"]) == (409, "Status", "Conflict", 409)
    assert says in status["message"]
    assert await served.requests() == []


@pytest.mark.parametrize("strategy", ["Always", "Once"])
async def test_stop_halts(served, strategy):
    await served.make(strategy, "Running")
    assert (await served.vm("stop"))[0] == 202
    assert (await served.cluster.get(VMS, "one"))["spec"]["runStrategy"] == "Halted"


async def test_stop_is_queued_and_replaces_what_waits(served):
    await served.make("Manual", "Running")
    assert (await served.vm("restart"))[0] == 202
    stop = {"action": "Stop", "uid": await served.uid()}
    assert await served.requests() == [stop, {"action": "Start"}]
    assert (await served.vm("stop", {"gracePeriod": 0}))[0] == 202
    assert await served.requests() == [stop]
    assert (await served.cluster.get(VMIS, "one"))["spec"]["terminationGracePeriodSeconds"] == 0
    code, status = await served.vm("restart")
    assert code == 409
    assert "already underway" in status["message"]


async def test_a_halted_vm_can_be_hurried(served):
    await served.make("Halted", "Running")
    assert (await served.vm("stop", {"gracePeriod": 5}))[0] == 202
    assert (await served.cluster.get(VMIS, "one"))["spec"]["terminationGracePeriodSeconds"] == 5
    assert (await served.vm("stop", {"gracePeriod": 5}))[0] == 409


async def test_a_forced_restart_shortens_the_grace(served):
    await served.make("Always", "Running")
    assert (await served.vm("restart", {"gracePeriodSeconds": 0}))[0] == 202
    assert (await served.cluster.get(VMIS, "one"))["spec"]["terminationGracePeriodSeconds"] == 1
    assert len(await served.requests()) == 2


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("restart", {"gracePeriodSeconds": 7}),
        ("stop", {"gracePeriod": -1}),
        ("stop", {"gracePeriod": "soon"}),
        ("start", {"dryRun": ["Some"]}),
        ("start", ["paused"]),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused(served, verb, body):
    await served.make("Always", "Running")
    code, status = await served.vm(verb, body)
    assert (code, status["reason"]) == (400, "BadRequest")


async def test_a_dry_run_changes_nothing(served):
    await served.make("Halted")
    assert (await served.vm("start", {"dryRun": ["All"]}))[0] == 202
    assert (await served.cluster.get(VMS, "one"))["spec"]["runStrategy"] == "Halted"


async def test_what_does_not_exist_is_not_found(served):
    for verb in ("start", "stop", "restart"):
        code, status = await served.vm(verb)
        assert (code, status["reason"]) == (404, "NotFound")
        assert 'virtualmachines.kubevirt.io "one" not found' in status["message"]
    assert (await served.vmi("pause"))[0] == 404


@pytest.mark.parametrize(
    ("verb", "action"), [("pause", "Pause"), ("softreboot", "SoftReboot"), ("reset", "Reset")]
)
async def test_a_wish_is_written_for_the_node_agent_once(served, verb, action):
    await served.make("Always", "Running")
    for _ in range(2):
        assert (await served.vmi(verb))[0] == 202
    (wish,) = (await served.cluster.get(VMIS, "one"))["status"]["hotvirt"]["requests"]
    assert wish["action"] == action
    assert wish["id"]
    assert wish["requestedAt"]


async def test_unpause_needs_a_paused_machine_and_wishes_keep_their_order(served):
    await served.make("Always", "Running")
    code, status = await served.vmi("unpause")
    assert (code, "not paused" in status["message"]) == (409, True)
    paused = [{"type": "Paused", "status": "True"}]
    await served.cluster.patch(VMIS, "one", {"status": {"conditions": paused}}, status=True)
    code, status = await served.vmi("pause")
    assert (code, "already paused" in status["message"]) == (409, True)
    assert (await served.vmi("softreboot"))[0] == 409
    assert (await served.vmi("reset"))[0] == 202
    assert (await served.vmi("unpause"))[0] == 202
    vmi = await served.cluster.get(VMIS, "one")
    assert [each["action"] for each in vmi["status"]["hotvirt"]["requests"]] == ["Reset", "Unpause"]
    assert condition(vmi, "Paused")


async def test_verbs_of_a_machine_need_one_that_runs(served):
    await served.make("Always", "Scheduled")
    for verb in ("pause", "unpause", "softreboot", "reset"):
        code, status = await served.vmi(verb)
        assert (code, "not running" in status["message"]) == (409, True)
    assert (await served.vmi("guestosinfo", method="GET"))[0] == 409
    assert (await served.vmi("console", method="GET"))[0] == 409


async def test_a_pause_with_a_liveness_probe_is_forbidden(served):
    await served.make("Always", "Running")
    probe = {"livenessProbe": {"tcpSocket": {"port": 80}}}
    await served.cluster.patch(VMIS, "one", {"spec": probe})
    code, status = await served.vmi("pause")
    assert (code, status["reason"]) == (403, "Forbidden")


async def test_guest_os_info(served):
    await served.make("Always", "Running", guestOSInfo={"id": "debian", "name": "Debian"})
    assert (await served.vmi("guestosinfo", method="GET"))[0] == 409
    agent = [{"type": "AgentConnected", "status": "True"}]
    await served.cluster.patch(VMIS, "one", {"status": {"conditions": agent}}, status=True)
    code, info = await served.vmi("guestosinfo", method="GET")
    assert (code, info["os"]["id"]) == (200, "debian")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "virtualmachines/one/migrate"),
        ("PUT", "virtualmachines/one/addvolume"),
        ("GET", "virtualmachines/one/expand-spec"),
        ("GET", "virtualmachineinstances/one/vnc"),
        ("GET", "virtualmachineinstances/one/portforward/80/tcp"),
    ],
)
async def test_what_hotvirt_does_not_have_is_said(served, method, path):
    code, status = await served.ask(method, f"{served.place}/{path}")
    assert (code, status["reason"]) == (501, "NotImplemented")
    assert status["message"].endswith(".")


async def test_discovery(served):
    async with served.session.get(f"{served.url}{PREFIX}") as answer:
        group = await answer.json()
    assert group["preferredVersion"]["version"] == "v1"
    code, listed = await served.ask("GET", "")
    assert code == 200
    verbs = {each["name"]: each["verbs"] for each in listed["resources"]}
    assert verbs["virtualmachines/start"] == ["update"]
    assert verbs["virtualmachineinstances/console"] == ["get"]
    assert (await served.ask("GET", "/nothing"))[0] == 404
    assert (await served.ask("GET", "/version"))[1]["gitVersion"].startswith("v")


async def test_the_console_carries_bytes_both_ways(served, tmp_path):
    await served.make("Always", "Running")
    heard = bytearray()

    async def echo(reader, writer):
        writer.write(b"login: ")
        while data := await reader.read(100):
            heard.extend(data)
            writer.write(data.upper())
            await writer.drain()
        writer.close()

    served.streams.path = str(tmp_path / "console.sock")
    server = await asyncio.start_unix_server(echo, served.streams.path)
    url = f"{served.url}{PREFIX}/v1{served.place}/virtualmachineinstances/one/console"
    async with served.session.ws_connect(url, protocols=("plain.kubevirt.io",)) as socket:
        assert socket.protocol == "plain.kubevirt.io"
        assert await socket.receive_bytes() == b"login: "
        await socket.send_bytes(b"root\n\xff")
        assert await socket.receive_bytes() == b"ROOT\n\xff"
    assert bytes(heard) == b"root\n\xff"
    server.close()


async def test_a_console_that_cannot_be_reached_is_said(served):
    await served.make("Always", "Running")
    url = f"{served.url}{PREFIX}/v1{served.place}/virtualmachineinstances/one/console"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await served.session.ws_connect(url, protocols=("plain.kubevirt.io",))
    assert refused.value.status == 500
    code, status = await served.vmi("console", method="GET")
    assert code == 400
    assert "hotvirt console" in status["message"]
