"""Namespaces, as far as the API server itself brings them."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Api
from .conftest import Namespace
from .objects import configmap, widget

NAMESPACES = "/api/v1/namespaces"


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public", "kube-node-lease"])
async def test_every_cluster_has(api: Api, name: str) -> None:
    assert (await api.get(f"{NAMESPACES}/{name}")).ok()["status"]["phase"] == "Active"


async def test_a_new_namespace_is_active_and_finalized_by_kubernetes(api: Api, ns: Namespace) -> None:
    found = (await api.get(f"{NAMESPACES}/{ns.name}")).ok()
    assert found["spec"]["finalizers"] == ["kubernetes"]
    assert found["status"] == {"phase": "Active"}
    assert found["metadata"]["labels"] == {"kubernetes.io/metadata.name": ns.name}


async def test_the_label_with_the_name_stays(api: Api, ns: Namespace) -> None:
    body = {"metadata": {"labels": {"kubernetes.io/metadata.name": "other", "mine": "yes"}}}
    changed = (await api.patch(f"{NAMESPACES}/{ns.name}", body)).ok()
    assert changed["metadata"]["labels"] == {"kubernetes.io/metadata.name": ns.name, "mine": "yes"}


async def test_a_name_of_a_namespace_is_a_dns_label(api: Api) -> None:
    status = (await api.post(NAMESPACES, namespace("with.dot"))).refused(422, "Invalid")
    assert status["details"]["causes"][0]["field"] == "metadata.name"


@pytest.mark.parametrize("name", ["default", "kube-system"])
async def test_some_namespaces_may_not_be_deleted(api: Api, name: str) -> None:
    status = (await api.delete(f"{NAMESPACES}/{name}")).refused(403, "Forbidden")
    assert status["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


async def test_a_deleted_namespace_with_content_is_terminating(api: Api, unique: str) -> None:
    await api.create(NAMESPACES, namespace(unique))
    held = configmap()
    held["metadata"]["finalizers"] = ["conformance.hotvirt.io/hold"]
    inside = Namespace(unique)
    await api.create(inside.configmaps, held)
    deleted = (await api.delete(f"{NAMESPACES}/{unique}")).ok()
    assert deleted["kind"] == "Namespace"
    assert deleted["status"]["phase"] == "Terminating"
    assert deleted["metadata"]["deletionTimestamp"]
    (await api.patch(f"{inside.configmaps}/one", {"metadata": {"finalizers": None}})).ok()


async def test_nothing_new_can_be_made_in_a_terminating_namespace(api: Api, unique: str) -> None:
    await api.create(NAMESPACES, namespace(unique))
    inside = Namespace(unique)
    held = configmap()
    held["metadata"]["finalizers"] = ["conformance.hotvirt.io/hold"]
    await api.create(inside.configmaps, held)
    (await api.delete(f"{NAMESPACES}/{unique}")).ok()
    status = (await api.post(inside.configmaps, configmap("late"))).refused(403, "Forbidden")
    assert status["message"] == (
        f'configmaps "late" is forbidden: unable to create new content in namespace {unique} '
        "because it is being terminated"
    )
    assert status["details"]["causes"] == [
        {
            "reason": "NamespaceTerminating",
            "message": f"namespace {unique} is being terminated",
            "field": "metadata.namespace",
        }
    ]
    (await api.post(inside.widgets, widget())).refused(403, "Forbidden")
    (await api.patch(f"{inside.configmaps}/one", {"metadata": {"finalizers": None}})).ok()


async def test_a_namespace_goes_when_its_finalizers_go(api: Api, unique: str) -> None:
    await api.create(NAMESPACES, namespace(unique))
    inside = Namespace(unique)
    held = configmap()
    held["metadata"]["finalizers"] = ["conformance.hotvirt.io/hold"]
    await api.create(inside.configmaps, held)
    deleted = (await api.delete(f"{NAMESPACES}/{unique}")).ok()
    deleted["spec"]["finalizers"] = []
    del deleted["metadata"]["resourceVersion"]
    finalized = (await api.put(f"{NAMESPACES}/{unique}/finalize", deleted)).ok()
    assert not finalized["spec"].get("finalizers")
    (await api.get(f"{NAMESPACES}/{unique}")).refused(404, "NotFound")


async def test_there_is_no_deletion_of_all_namespaces(api: Api) -> None:
    (await api.delete(NAMESPACES)).refused(405, "MethodNotAllowed")


async def test_the_status_of_a_namespace_is_written_apart(api: Api, ns: Namespace) -> None:
    condition = {"type": "Suite", "status": "True", "reason": "Tested", "message": "It works."}
    answer = await api.patch(f"{NAMESPACES}/{ns.name}/status", {"status": {"conditions": [condition]}})
    (found,) = answer.ok()["status"]["conditions"]
    assert found["reason"] == "Tested"
