"""Who may use the aggregated API and for what; where the processes refuse to work; their settings."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from hotvirt.cluster.authorize import attributes, refusal
from hotvirt.cluster.front_proxy import (
    CONFIG_MAP,
    NAMESPACE,
    Caller,
    FrontProxy,
    RequestHeader,
    is_still_trusted,
)
from hotvirt.cluster.refusal import old_kubernetes
from hotvirt.cluster.settings import ControllerSettings, NodeSettings, SettingsError
from hotvirt.kube.client import Client
from hotvirt.kube.x509 import SERVER, make, make_ca, name, server_context

from .tiny_api import TinyApi, config_map

GROUP = "/apis/subresources.kubevirt.io"
NOW = datetime.now(UTC)
DAY = timedelta(days=1)
CA = make_ca(name("front-proxy-ca"), DAY, NOW)
OTHER_CA = make_ca(name("another-ca"), DAY, NOW)
DATA = {
    "requestheader-client-ca-file": CA.certificate_pem.decode(),
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-uid-headers": '["X-Remote-Uid"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}


@pytest.mark.parametrize(
    ("method", "path", "verb", "rest"),
    [
        (
            "PUT",
            f"{GROUP}/v1/namespaces/shop/virtualmachines/web/start",
            "update",
            {"namespace": "shop", "resource": "virtualmachines", "name": "web", "subresource": "start"},
        ),
        (
            "GET",
            f"{GROUP}/v1alpha3/namespaces/shop/virtualmachineinstances/web/console",
            "get",
            {"namespace": "shop", "resource": "virtualmachineinstances", "subresource": "console"},
        ),
        ("GET", f"{GROUP}/v1/version", "list", {"resource": "version"}),
        ("DELETE", f"{GROUP}/v1/things", "deletecollection", {"resource": "things"}),
    ],
)
def test_a_request_in_the_words_of_authorisation(
    method: str, path: str, verb: str, rest: dict[str, str]
) -> None:
    asked = attributes(method, path)["resourceAttributes"]
    assert asked["verb"] == verb
    assert asked["group"] == "subresources.kubevirt.io"
    assert rest.items() <= asked.items()


async def test_not_ready_before_it_is_known_whom_to_believe() -> None:
    api, changed = TinyApi(), asyncio.Event()
    async with api.running() as config, Client(config) as client, asyncio.timeout(60):
        await api.put("configmaps", config_map(CONFIG_MAP, NAMESPACE, **DATA))
        proxy = FrontProxy(client)
        assert proxy.not_ready() == "the request-header CA has not been read yet"
        running = asyncio.create_task(proxy.run(changed.set))
        await changed.wait()
        assert proxy.trusted == CA.certificate_pem
        assert proxy.not_ready() is None
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize("path", [GROUP, f"{GROUP}/v1", "/openapi/v3"])
def test_discovery_is_no_resource(path: str) -> None:
    assert attributes("GET", path) == {"nonResourceAttributes": {"path": path, "verb": "get"}}


def test_a_refusal_reads_as_the_api_servers() -> None:
    asked = attributes("PUT", f"{GROUP}/v1/namespaces/shop/virtualmachines/web/start")
    assert refusal(Caller("joe"), asked, "") == (
        'virtualmachines.subresources.kubevirt.io "web" is forbidden: User "joe" cannot update resource '
        '"virtualmachines/start" in API group "subresources.kubevirt.io" in the namespace "shop"'
    )


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def test_the_user_of_the_headers() -> None:
    caller = RequestHeader.of(DATA).caller(
        "front-proxy-client",
        headers(
            ("X-Remote-User", "alice"),
            ("X-Remote-Uid", "17"),
            ("X-Remote-Group", "dev"),
            ("x-remote-group", "system:authenticated"),
            ("X-Remote-Extra-Example.com%2fscopes", "a"),
            ("X-Remote-Extra-Example.com%2fscopes", "b"),
        ),
    )
    assert caller == Caller(
        "alice", ("dev", "system:authenticated"), "17", {"example.com/scopes": ["a", "b"]}
    )


def test_only_named_proxies_vouch_and_only_for_somebody() -> None:
    agreed = RequestHeader.of(DATA)
    assert agreed.caller("somebody-else", headers(("X-Remote-User", "alice"))) is None
    assert agreed.caller("front-proxy-client", headers(("X-Remote-Group", "system:masters"))) is None
    anybody = RequestHeader.of(DATA | {"requestheader-allowed-names": "[]"})
    alice = anybody.caller("somebody-else", headers(("X-Remote-User", "alice")))
    assert alice == Caller("alice", ("system:authenticated",))


def test_everybody_who_is_known_counts_as_authenticated() -> None:
    agreed = RequestHeader.of(DATA)
    aggregator = agreed.caller("front-proxy-client", headers(("X-Remote-User", "system:kube-aggregator")))
    assert aggregator and aggregator.groups == ("system:authenticated",)
    nobody = (("X-Remote-User", "system:anonymous"), ("X-Remote-Group", "system:unauthenticated"))
    anonymous = agreed.caller("front-proxy-client", headers(*nobody))
    assert anonymous and anonymous.groups == ("system:unauthenticated",)


@pytest.mark.parametrize(
    "change",
    [
        {"requestheader-client-ca-file": ""},
        {"requestheader-client-ca-file": "nonsense"},
        {"requestheader-username-headers": '{"a": 1}'},
        {"requestheader-group-headers": "["},
    ],
)
def test_an_agreement_that_cannot_be_read_is_none(change: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        RequestHeader.of(DATA | change)


def test_an_open_connection_counts_as_long_as_every_ca_that_could_have_let_it_in() -> None:
    own = make(None, name("server"), DAY, NOW, [SERVER], ["localhost"])
    one, other = CA.certificate_pem, OTHER_CA.certificate_pem
    context = server_context(own.certificate_pem, own.key_pem, one)
    assert is_still_trusted(context, one)
    assert is_still_trusted(context, one + other)
    assert not is_still_trusted(context, other)
    assert not is_still_trusted(server_context(own.certificate_pem, own.key_pem, one + other), one)
    assert not is_still_trusted(None, one)


@pytest.mark.parametrize(
    ("major", "minor", "works"), [("1", "34", True), ("1", "37+", True), ("2", "0", True)]
)
def test_kubernetes_that_is_new_enough(major: str, minor: str, works: bool) -> None:
    assert (old_kubernetes({"major": major, "minor": minor, "gitVersion": "v"}) is None) is works


@pytest.mark.parametrize(("major", "minor"), [("1", "33"), ("1", "9+"), ("", "")])
def test_kubernetes_that_is_too_old(major: str, minor: str) -> None:
    sentence = old_kubernetes({"major": major, "minor": minor, "gitVersion": "v1.33.2"})
    assert sentence is not None
    assert "v1.33.2" in sentence
    assert "1.34 or newer" in sentence


def test_settings_of_the_controller() -> None:
    settings = ControllerSettings.of(
        {"POD_NAME": "c-1", "HOTVIRT_LAUNCHER_IMAGE": "r/l:1", "HOTVIRT_CERTIFICATES": "given"}
    )
    assert settings.identity == "c-1"
    assert settings.platform.launcher_image == "r/l:1"
    assert settings.platform.image_volumes is False
    assert settings.certificates == "given"


@pytest.mark.parametrize(
    "wrong",
    [
        {"HOTVIRT_IMAGE_VOLUMES": "yes"},
        {"HOTVIRT_CERTIFICATES": "mine"},
        {"HOTVIRT_PORT": "https"},
        {"HOTVIRT_PORT": "70000"},
        {"HOTVIRT_KUBEVIRT_SPEC": "[]"},
        {"HOTVIRT_KUBEVIRT_SPEC": '{"configuration": {"vmRolloutStrategy": "Soon"}}'},
    ],
)
def test_what_cannot_be_is_told_with_its_name(wrong: dict[str, str]) -> None:
    (variable,) = wrong
    with pytest.raises(SettingsError, match=variable):
        ControllerSettings.of(wrong)


def test_a_node_must_know_who_it_is() -> None:
    with pytest.raises(SettingsError, match="NODE_NAME"):
        NodeSettings.of({"POD_IP": "10.0.0.1"})
    settings = NodeSettings.of({"NODE_NAME": "n", "POD_IP": "10.0.0.1", "POD_NAME": "p", "POD_UID": "u"})
    assert settings.root == Path("/var/lib/kubelet")
    assert settings.pod == ("p", "u")
    assert settings.hypervisor == "qemu"
