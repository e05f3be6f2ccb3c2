"""Who may come in, and the reviews that say what one may do."""

from __future__ import annotations

import pytest

from . import protobuf
from .client import PROTOBUF, Api
from .conftest import Namespace
from .objects import GROUP

ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def test_without_credentials_one_is_anonymous_and_forbidden(api: Api, ns: Namespace) -> None:
    status = (await api.get(ns.pods, anonymous=True)).refused(403, "Forbidden")
    assert status["message"] == (
        'pods is forbidden: User "system:anonymous" cannot list resource "pods" '
        f'in API group "" in the namespace "{ns.name}"'
    )
    assert status["details"] == {"kind": "pods"}


async def test_the_refusal_names_the_object_and_the_group(api: Api, ns: Namespace) -> None:
    status = (await api.get(f"{ns.widgets}/one", anonymous=True)).refused(403, "Forbidden")
    assert status["message"] == (
        f'widgets.{GROUP} "one" is forbidden: User "system:anonymous" cannot get resource "widgets" '
        f'in API group "{GROUP}" in the namespace "{ns.name}"'
    )
    assert status["details"] == {"name": "one", "group": GROUP, "kind": "widgets"}


async def test_the_refusal_of_a_cluster_wide_request(api: Api) -> None:
    status = (await api.get("/api/v1/nodes", anonymous=True)).refused(403, "Forbidden")
    assert status["message"] == (
        'nodes is forbidden: User "system:anonymous" cannot list resource "nodes" '
        'in API group "" at the cluster scope'
    )


async def test_the_refusal_of_a_path_that_is_no_resource(api: Api) -> None:
    status = (await api.get("/metrics", anonymous=True)).refused(403, "Forbidden")
    assert status["message"] == 'forbidden: User "system:anonymous" cannot get path "/metrics"'


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/healthz", "/version"])
async def test_health_and_version_are_for_everybody(api: Api, path: str) -> None:
    assert (await api.get(path, anonymous=True, accept="*/*")).status == 200


async def test_a_wrong_token_is_unauthorized(api: Api, ns: Namespace) -> None:
    status = (await api.get(ns.pods, token="wrong")).refused(401, "Unauthorized")
    assert status["message"] == "Unauthorized"


async def test_one_may_ask_what_one_may_do(api: Api, ns: Namespace) -> None:
    attributes = {"namespace": ns.name, "verb": "create", "resource": "pods"}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    review = await api.create(ACCESS, body)
    assert review["kind"] == "SelfSubjectAccessReview"
    assert review["status"]["allowed"] is True
    assert review["spec"]["resourceAttributes"] == attributes


async def test_one_may_ask_about_paths(api: Api) -> None:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}},
    }
    assert (await api.create(ACCESS, body))["status"]["allowed"] is True


async def test_an_access_review_asks_one_thing(api: Api) -> None:
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}}
    status = (await api.post(ACCESS, body)).refused(422, "Invalid")
    assert "exactly one of nonResourceAttributes or resourceAttributes must be specified" in status["message"]


async def test_one_may_ask_for_all_rules(api: Api, ns: Namespace) -> None:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": ns.name},
    }
    status = (await api.create(RULES, body))["status"]
    assert status["incomplete"] is False
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    assert everything in status["resourceRules"]
    assert {"verbs": ["*"], "nonResourceURLs": ["*"]} in status["nonResourceRules"]


async def test_one_may_ask_who_one_is(api: Api) -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    info = (await api.create(WHO, body))["status"]["userInfo"]
    assert info["username"]
    assert "system:authenticated" in info["groups"]


async def test_an_access_review_may_be_protobuf(api: Api, ns: Namespace) -> None:
    attributes: list[protobuf.Field] = [(1, ns.name), (2, "list"), (3, ""), (4, "*"), (5, "pods")]
    body = protobuf.body(
        "authorization.k8s.io/v1", "SelfSubjectAccessReview", (1, []), (2, [(1, attributes)])
    )
    review = await api.create(ACCESS, body, content_type=PROTOBUF, accept=f"{PROTOBUF};q=0,application/json")
    assert review["status"]["allowed"] is True
    assert review["spec"]["resourceAttributes"]["verb"] == "list"


async def test_a_rules_review_may_be_protobuf(api: Api, ns: Namespace) -> None:
    body = protobuf.body("authorization.k8s.io/v1", "SelfSubjectRulesReview", (2, [(1, ns.name)]))
    review = await api.create(RULES, body, content_type=PROTOBUF)
    assert review["status"]["resourceRules"]


async def test_a_self_review_may_be_protobuf(api: Api) -> None:
    body = protobuf.body("authentication.k8s.io/v1", "SelfSubjectReview", (1, []))
    assert (await api.create(WHO, body, content_type=PROTOBUF))["status"]["userInfo"]["username"]


async def test_a_configmap_may_be_protobuf(api: Api, ns: Namespace) -> None:
    metadata: list[protobuf.Field] = [(1, "one"), (3, ""), (11, [(1, "label"), (2, "x")])]
    body = protobuf.body("v1", "ConfigMap", (1, metadata), (2, [(1, "key"), (2, "value")]))
    made = await api.create(ns.configmaps, body, content_type=PROTOBUF, fieldValidation="Strict")
    assert made["data"] == {"key": "value"}
    assert made["metadata"]["labels"] == {"label": "x"}


async def test_a_secret_may_be_protobuf(api: Api, ns: Namespace) -> None:
    body = protobuf.body(
        "v1", "Secret", (1, [(1, "one")]), (2, [(1, "key"), (2, b"\xff\x00")]), (3, "Opaque")
    )
    made = await api.create(ns.path("secrets"), body, content_type=PROTOBUF)
    assert made["data"] == {"key": "/wA="}
    assert made["type"] == "Opaque"


async def test_a_namespace_may_be_protobuf(api: Api, unique: str) -> None:
    body = protobuf.body("v1", "Namespace", (1, [(1, unique)]), (2, []), (3, []))
    made = await api.create("/api/v1/namespaces", body, content_type=PROTOBUF)
    assert made["status"]["phase"] == "Active"
    await api.delete(f"/api/v1/namespaces/{unique}")


async def test_a_service_account_may_be_protobuf(api: Api, ns: Namespace) -> None:
    body = protobuf.body("v1", "ServiceAccount", (1, [(1, "one")]))
    made = await api.create(ns.path("serviceaccounts"), body, content_type=PROTOBUF)
    assert made["metadata"]["name"] == "one"


async def test_a_quota_may_be_protobuf(api: Api, ns: Namespace) -> None:
    hard: list[protobuf.Field] = [(1, [(1, "pods"), (2, [(1, "5")])])]
    body = protobuf.body("v1", "ResourceQuota", (1, [(1, "one")]), (2, hard), (3, []))
    made = await api.create(ns.path("resourcequotas"), body, content_type=PROTOBUF)
    assert made["spec"]["hard"] == {"pods": "5"}


async def test_protobuf_that_is_none_is_400(api: Api, ns: Namespace) -> None:
    (await api.post(ns.configmaps, b"k8s\0\xff\xff", content_type=PROTOBUF)).refused(400, "BadRequest")
