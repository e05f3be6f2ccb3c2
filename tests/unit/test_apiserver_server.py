"""The server as a whole, over its unix socket: what the behaviour suite cannot see from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest_asyncio

from hotvirt.admission.request import AdmissionRequest, AdmissionResponse
from hotvirt.api import names
from hotvirt.embedded.apiserver.audit import Audit
from hotvirt.embedded.apiserver.call import Call, User
from hotvirt.embedded.apiserver.expiry import drop_old_events
from hotvirt.embedded.apiserver.internal import InternalRequest
from hotvirt.embedded.apiserver.server import ApiServer
from hotvirt.embedded.apiserver.store import Store
from hotvirt.embedded.pki import Pki
from hotvirt.plan.causes import Cause

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
VMS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines"
PODS = "/api/v1/namespaces/default/pods"


class Hooks:
    """Admission that a test can tell what to answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.refusal: AdmissionResponse | None = None

    async def mutate(self, request: AdmissionRequest) -> AdmissionResponse:
        self.asked.append(("mutate", request.operation, request.resource))
        if request.object is None or request.resource != "virtualmachines.kubevirt.io":
            return AdmissionResponse()
        labels = (request.object["metadata"].get("labels") or {}) | {"mutated": "yes"}
        metadata = request.object["metadata"] | {"labels": labels}
        return AdmissionResponse(object=request.object | {"metadata": metadata, "unknown": 1})

    async def validate(self, request: AdmissionRequest) -> AdmissionResponse:
        self.asked.append(("validate", request.operation, request.resource))
        if self.refusal is not None:
            return self.refusal
        return AdmissionResponse(
            warnings=['a "quoted" warning'] if "virtualmachines" in request.resource else []
        )


class Logs:
    async def log(self, pod: str, container: str, options: Any) -> AsyncIterator[bytes]:
        yield f"{container} tail={options.tail_lines} follow={options.follow}\n".encode()
        yield b"second\n"


class Api:
    """A server and a user of it."""

    def __init__(self, folder: Path) -> None:
        self.pki = Pki.open(folder / "pki")
        self.hooks = Hooks()
        self.audited: list[dict[str, Any]] = []
        self.server = ApiServer(
            Store(folder / "api.db"),
            self.pki,
            self.hooks,
            None,
            Logs(),
            socket=folder / "api.sock",
            on_audit=self.audited.append,
        )
        self.session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(folder / "api.sock"), limit=0)
        )
        self.token = self.pki.token_for("tester", (names.MASTERS_GROUP,))

    async def ask(
        self, method: str, path: str, body: Any = None, code: int = 200, **headers: str
    ) -> tuple[Any, aiohttp.ClientResponse]:
        given = {"Authorization": f"Bearer {self.token}"} | {
            k.replace("_", "-"): v for k, v in headers.items()
        }
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        if data is not None:
            given.setdefault("Content-Type", "application/json")
        async with self.session.request(method, f"http://api{path}", data=data, headers=given) as answer:
            text = await answer.text()
        assert answer.status == code, f"{answer.status}: {text}"
        return (json.loads(text) if answer.content_type == "application/json" and text else text), answer

    async def make(self, path: str, obj: dict[str, Any], code: int = 201) -> Any:
        return (await self.ask("POST", path, obj, code))[0]


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    made = Api(tmp_path)
    await made.server.start(0)
    yield made
    await made.session.close()
    await made.server.stop()


def configmap(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def vm(name: str = "one") -> dict[str, Any]:
    template = {"spec": {"domain": {"devices": {}}}}
    spec = {"runStrategy": "Halted", "template": template}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": spec,
    }


def launcher_pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "compute", "image": f"{names.LAUNCHER_IMAGE}:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, **spec},
    }


async def test_admission_mutates_then_validates_and_warns(api: Api) -> None:
    api.hooks.asked.clear()
    made, answer = await api.ask("POST", VMS, vm(), 201)
    resource = "virtualmachines.kubevirt.io"
    assert api.hooks.asked == [("mutate", "CREATE", resource), ("validate", "CREATE", resource)]
    assert made["metadata"]["labels"] == {"mutated": "yes"}
    assert "unknown" not in made, "what a hook returns goes through the schema too"
    assert answer.headers.getall("Warning")[-1] == '299 - "a \\"quoted\\" warning"'


async def test_a_refusal_of_admission_has_its_causes(api: Api) -> None:
    causes = [Cause("spec.template", "FieldValueInvalid", "cannot work")]
    api.hooks.refusal = AdmissionResponse(
        allowed=False, code=422, reason="Invalid", message="no", causes=causes
    )
    status = await api.make(VMS, vm(), 422)
    assert (
        status["message"] == 'admission webhook "virtualmachine-validate.hotvirt.io" denied the request: no'
    )
    assert status["details"]["causes"] == [
        {"reason": "FieldValueInvalid", "message": "cannot work", "field": "spec.template"}
    ]
    await api.ask("GET", f"{VMS}/one", code=404)


async def test_a_pod_that_is_not_hotvirts_is_refused(api: Api) -> None:
    pod = launcher_pod()
    pod["spec"]["containers"][0]["image"] = "nginx"
    status = await api.make(PODS, pod, 403)
    assert "only Hotvirt's own Pods run here: spec.containers[0].image is 'nginx'" in status["message"]


async def test_a_pods_image_cannot_become_another(api: Api) -> None:
    await api.make(PODS, launcher_pod())
    patch = {"spec": {"containers": [{"name": "compute", "image": "nginx"}]}}
    await api.ask("PATCH", f"{PODS}/p", patch, 403, Content_Type="application/strategic-merge-patch+json")


async def test_the_log_is_the_nodes(api: Api) -> None:
    await api.make(PODS, launcher_pod(nodeName="here"))
    text, answer = await api.ask("GET", f"{PODS}/p/log?tailLines=3&follow=true")
    assert text == "compute tail=3 follow=True\nsecond\n"
    assert answer.content_type == "text/plain"


async def test_exec_is_refused_with_a_sentence(api: Api) -> None:
    await api.make(PODS, launcher_pod())
    (status, _) = await api.ask("POST", f"{PODS}/p/exec?command=sh", code=501)
    assert "exec is not possible in one-machine mode" in status["message"]


async def test_who_may_do_what(api: Api) -> None:
    await api.ask("GET", CONFIGMAPS, code=401, Authorization="Bearer wrong")
    status, _ = await api.ask("GET", CONFIGMAPS, code=403, Authorization="")
    assert 'User "system:anonymous" cannot list resource "configmaps"' in status["message"]
    nobody = f"Bearer {api.pki.token_for('nobody')}"
    await api.ask("GET", CONFIGMAPS, code=403, Authorization=nobody)
    await api.ask("GET", "/apis", Authorization=nobody)
    component = f"Bearer {api.pki.token_for(names.CONTROLLER_USER)}"
    await api.ask("GET", CONFIGMAPS, Authorization=component)
    await api.ask("GET", CONFIGMAPS, code=403, Authorization=component, Impersonate_User="other")
    await api.ask("GET", CONFIGMAPS, code=403, Impersonate_User="other")
    await api.ask("GET", CONFIGMAPS, Impersonate_User="other", Impersonate_Group=names.MASTERS_GROUP)


async def test_every_write_is_audited_and_no_read(api: Api) -> None:
    await api.make(CONFIGMAPS, configmap("a"))
    await api.ask("GET", f"{CONFIGMAPS}/a")
    await api.ask("DELETE", f"{CONFIGMAPS}/none", code=404)
    shown = [(one["user"], one["verb"], one["resource"], one["name"], one["code"]) for one in api.audited]
    assert shown == [
        ("tester", "create", "configmaps", "a", 201),
        ("tester", "delete", "configmaps", "none", 404),
    ]


async def test_the_audit_log_is_bounded(tmp_path: Path, api: Api) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path, largest=2000)
    kind = api.server.api.registry.find("", "v1", "configmaps")
    assert kind is not None
    call = Call(InternalRequest(), User("tester"), kind, "default", "a", "", "create")
    for _ in range(50):
        audit.request(call, 201)
    audit.close()
    assert path.stat().st_size <= 2000
    assert path.with_name("audit.log.1").stat().st_size <= 2000
    assert json.loads(path.read_text().splitlines()[-1])["name"] == "a"


async def test_a_deleted_crd_takes_its_objects_with_it(api: Api) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "cats.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "cats", "kind": "Cat"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await api.make(crds, crd)
    cats = "/apis/example.com/v1/namespaces/default/cats"
    await api.make(cats, {"apiVersion": "example.com/v1", "kind": "Cat", "metadata": {"name": "tom"}})
    gone = asyncio.Event()
    api.server.api.crds.on_gone.append(lambda kind: gone.set())
    await api.ask("DELETE", f"{crds}/cats.example.com")
    await asyncio.wait_for(gone.wait(), 60)
    await api.ask("GET", cats, code=404)
    assert api.server.store.count("cats.example.com") == 0


async def test_an_event_has_two_faces(api: Api) -> None:
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "hello",
        "reason": "Test",
        "type": "Normal",
        "action": "x",
        "reportingController": "tests",
        "reportingInstance": "one",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    await api.make("/apis/events.k8s.io/v1/namespaces/default/events", event)
    core, _ = await api.ask("GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=p")
    assert [(one["message"], one["involvedObject"]["name"]) for one in core["items"]] == [("hello", "p")]
    back, _ = await api.ask("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e")
    assert (back["apiVersion"], back["note"]) == ("events.k8s.io/v1", "hello")


async def test_a_full_disk_is_said_and_nothing_is_written(api: Api) -> None:
    store = api.server.store
    await api.make(CONFIGMAPS, configmap("a"))
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    status = await api.make(CONFIGMAPS, configmap("b", x="y" * 200_000), 507)
    assert "The disk that holds the state folder is full: nothing was written." in status["message"]
    await api.ask("GET", f"{CONFIGMAPS}/b", code=404)


async def test_a_stopped_server_ends_its_watches(tmp_path: Path) -> None:
    api = Api(tmp_path)
    await api.server.start(0)
    headers = {"Authorization": f"Bearer {api.token}"}
    async with api.session.get(f"http://api{CONFIGMAPS}?watch=1", headers=headers) as watch:
        await asyncio.wait_for(api.server.stop(), 20)
        assert await watch.content.read() == b""
    await api.session.close()


async def test_a_watch_does_not_go_on_from_what_a_power_cut_may_have_taken_back(tmp_path: Path) -> None:
    api = Api(tmp_path)
    await api.server.start(0)
    made = await api.make(CONFIGMAPS, configmap("a"))
    await api.server.stop()
    await api.session.close()
    api = Api(tmp_path)
    await api.server.start(0)
    await api.make(CONFIGMAPS, configmap("b"))
    last = int(made["metadata"]["resourceVersion"])
    said = {}
    for version in (last, last + 1):
        path = f"http://api{CONFIGMAPS}?watch=1&timeoutSeconds=1&resourceVersion={version}"
        headers = {"Authorization": f"Bearer {api.token}"}
        async with api.session.get(path, headers=headers) as watch:
            said[version] = [json.loads(line) async for line in watch.content]
    await api.session.close()
    await api.server.stop()
    assert [event["object"]["metadata"]["name"] for event in said[last]] == ["b"]
    assert [event["object"]["code"] for event in said[last + 1]] == [410]


async def test_who_waits_for_the_disk(api: Api) -> None:
    store = api.server.store
    waited = []
    write = store.write

    async def seen(*given: Any, durable: bool = True, **others: Any) -> Any:
        waited.append(durable)
        return await write(*given, durable=durable, **others)

    store.write = seen  # type: ignore[method-assign]  # only looks at what is asked for
    await api.make(CONFIGMAPS, configmap("a"))
    for user in (names.CONTROLLER_USER, names.NODE_USER, names.API_USER):
        api.token = api.pki.token_for(user, (names.MASTERS_GROUP,))
        await api.ask(
            "PATCH", f"{CONFIGMAPS}/a", {"data": {"by": user}}, Content_Type="application/merge-patch+json"
        )
    assert waited == [True, False, False, True]


async def test_a_watch_whose_client_has_gone_is_forgotten(api: Api) -> None:
    headers = {"Authorization": f"Bearer {api.token}"}
    hub = api.server.api.hub
    async with api.session.get(f"http://api{CONFIGMAPS}?watch=1", headers=headers):
        assert hub.count() == 1
    async with asyncio.timeout(60):
        while hub.count():  # noqa: ASYNC110  # the server's end of a connection has no event to await here
            await asyncio.sleep(0.01)


async def test_metrics_have_kubernetes_names(api: Api) -> None:
    await api.make(CONFIGMAPS, configmap("a"))
    text, _ = await api.ask("GET", "/metrics")
    assert 'apiserver_request_total{code="201",group="",resource="configmaps"' in text
    assert 'apiserver_resource_objects{resource="configmaps"} 1.0' in text


async def test_the_kubeconfigs_certificate_is_a_master(api: Api, tmp_path: Path) -> None:
    from hotvirt.api.resources import CONFIGMAPS as RESOURCE
    from hotvirt.kube.client import Client
    from hotvirt.kube.config import load_kubeconfig

    path = tmp_path / "kubeconfig"
    api.pki.write_kubeconfig(path, api.server.url)
    async with Client(load_kubeconfig(path)) as client:
        assert (await client.list(RESOURCE, "default")).items == []


async def test_a_service_account_has_tokens_as_long_as_it_lives(api: Api) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await api.make(accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = f"Bearer {(await api.make(f'{accounts}/robot/token', asked))['status']['token']}"
    await api.ask("GET", "/apis", Authorization=token)
    status, _ = await api.ask("GET", CONFIGMAPS, code=403, Authorization=token)
    assert 'User "system:serviceaccount:default:robot"' in status["message"]
    too_short = asked | {"spec": {"expirationSeconds": 1}}
    await api.make(f"{accounts}/robot/token", too_short, 422)
    await api.ask("DELETE", f"{accounts}/robot")
    await api.ask("GET", "/apis", code=401, Authorization=token)


async def test_events_go_after_an_hour(api: Api) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
    }
    await api.make("/api/v1/namespaces/default/events", event)
    assert await drop_old_events(api.server.api, time.time() + 3000) == 0
    assert await drop_old_events(api.server.api, time.time() + 4000) == 1
    await api.ask("GET", "/api/v1/namespaces/default/events/e", code=404)


async def test_a_client_that_does_not_read_is_cut_off(api: Api, tmp_path: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "api.sock"), limit=1 << 16)
    head = f"GET {CONFIGMAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n\r\n"
    writer.write(head.encode())
    await reader.readuntil(b"\r\n\r\n")
    hub = api.server.api.hub
    (watch,) = hub._watches["configmaps"]
    watch._backlog = 5
    for number in range(60):
        await api.make(CONFIGMAPS, configmap(f"large-{number}", text="x" * 100_000))
        if watch.closed:
            break
    assert watch.closed
    with contextlib.suppress(ConnectionResetError):
        while await asyncio.wait_for(reader.read(1 << 20), 60):
            pass
    writer.close()
