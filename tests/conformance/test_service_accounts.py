"""Service accounts and their tokens."""

from __future__ import annotations

from typing import Any

import pytest_asyncio

from .client import Api, soon
from .conftest import Namespace

WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@pytest_asyncio.fixture
async def account(api: Api, ns: Namespace) -> str:
    accounts = ns.path("serviceaccounts")
    await api.create(accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "one"}})
    return f"{accounts}/one"


def request(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


async def test_a_token_can_be_asked_for(api: Api, account: str) -> None:
    made = (await api.post(f"{account}/token", request(expirationSeconds=600))).ok(201)
    assert made["kind"] == "TokenRequest"
    assert len(made["status"]["token"]) > 20
    assert made["status"]["expirationTimestamp"].endswith("Z")


async def test_a_token_is_its_account(api: Api, ns: Namespace, account: str) -> None:
    token = (await api.post(f"{account}/token", request())).ok(201)["status"]["token"]
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    user = (await api.post(WHO, body, token=token)).ok(201)["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{ns.name}:one"
    assert set(user["groups"]) == {
        "system:serviceaccounts",
        f"system:serviceaccounts:{ns.name}",
        "system:authenticated",
    }


async def test_an_account_may_do_nothing_at_first(api: Api, ns: Namespace, account: str) -> None:
    token = (await api.post(f"{account}/token", request())).ok(201)["status"]["token"]
    status = (await api.get(ns.pods, token=token)).refused(403, "Forbidden")
    assert status["message"] == (
        f'pods is forbidden: User "system:serviceaccount:{ns.name}:one" cannot list resource "pods" '
        f'in API group "" in the namespace "{ns.name}"'
    )


async def test_a_token_dies_with_its_account(api: Api, ns: Namespace, account: str) -> None:
    token = (await api.post(f"{account}/token", request())).ok(201)["status"]["token"]
    (await api.delete(account)).ok()
    refused = await soon(lambda: api.get(ns.pods, token=token), lambda answer: answer.status != 403)
    refused.refused(401, "Unauthorized")


async def test_a_token_lives_at_least_ten_minutes(api: Api, account: str) -> None:
    status = (await api.post(f"{account}/token", request(expirationSeconds=5))).refused(422, "Invalid")
    assert {cause["field"] for cause in status["details"]["causes"]} == {"spec.expirationSeconds"}


async def test_a_missing_account_has_no_token(api: Api, ns: Namespace) -> None:
    path = f"{ns.path('serviceaccounts')}/none/token"
    (await api.post(path, request())).refused(404, "NotFound")
