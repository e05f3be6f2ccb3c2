"""What a cluster's controllers do with objects: garbage collection, and the end of a namespace.

A bare API server does none of it, so these run only on targets that have controllers.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from .client import Api
from .conftest import Namespace
from .objects import OURS, configmap, widget

pytestmark = pytest.mark.needs_controllers

HOLD = "conformance.hotvirt.io/hold"
# The real garbage collector looks for new kinds only every 30 s.
WITHIN = 120.0


def owned(name: str, owner: dict[str, Any], *, block: bool = False) -> dict[str, Any]:
    body = configmap(name)
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    body["metadata"]["ownerReferences"] = [reference | ({"blockOwnerDeletion": True} if block else {})]
    return body


async def gone(api: Api, collection: str, name: str) -> None:
    """Wait until the object is not there."""
    async with api.watch(
        collection,
        fieldSelector=f"metadata.name={name}",
        sendInitialEvents=True,
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks=True,
    ) as watch:
        there = False
        while True:
            event = await watch.next(WITHIN)
            if event["type"] == "DELETED":
                return
            if event["type"] == "BOOKMARK" and not there:
                return
            there = True


async def known_to_the_collector(api: Api, ns: Namespace) -> None:
    """Wait until the garbage collector knows the ConfigMaps so far: it has taken one that came after them.

    An owner that it sees deleted before it has heard of a dependent has none.
    """
    nobody = configmap("nobody")
    nobody["metadata"]["uid"] = str(uuid.uuid4())
    await api.create(ns.configmaps, owned("of-nobody", nobody))
    await gone(api, ns.configmaps, "of-nobody")


async def test_dependents_go_with_their_owner(api: Api, ns: Namespace) -> None:
    owner = await api.create(ns.widgets, widget("owner"))
    await api.create(ns.configmaps, owned("child", owner))
    (await api.delete(f"{ns.widgets}/owner", {"propagationPolicy": "Background"})).ok()
    (await api.get(f"{ns.widgets}/owner")).refused(404, "NotFound")
    await gone(api, ns.configmaps, "child")


async def test_background_is_the_default(api: Api, ns: Namespace) -> None:
    owner = await api.create(ns.configmaps, configmap("owner"))
    await api.create(ns.configmaps, owned("child", owner))
    (await api.delete(f"{ns.configmaps}/owner")).ok()
    await gone(api, ns.configmaps, "child")


async def test_a_chain_goes_link_by_link(api: Api, ns: Namespace) -> None:
    owner = await api.create(ns.widgets, widget("owner"))
    middle = await api.create(ns.configmaps, owned("middle", owner))
    await api.create(ns.configmaps, owned("leaf", middle))
    (await api.delete(f"{ns.widgets}/owner")).ok()
    await gone(api, ns.configmaps, "middle")
    await gone(api, ns.configmaps, "leaf")


async def test_foreground_waits_for_the_dependents(api: Api, ns: Namespace) -> None:
    owner = await api.create(ns.widgets, widget("owner"))
    child = owned("child", owner, block=True)
    child["metadata"]["finalizers"] = [HOLD]
    await api.create(ns.configmaps, child)
    await known_to_the_collector(api, ns)
    deleted = (await api.delete(f"{ns.widgets}/owner", {"propagationPolicy": "Foreground"})).ok()
    assert deleted["metadata"]["finalizers"] == ["foregroundDeletion"]
    selector = {"fieldSelector": "metadata.name=child"}
    async with api.watch(ns.configmaps, **selector) as watch:
        while not (await watch.next(WITHIN))["object"]["metadata"].get("deletionTimestamp"):
            pass
    assert (await api.get(f"{ns.widgets}/owner")).ok()["metadata"]["deletionTimestamp"]
    (await api.patch(f"{ns.configmaps}/child", {"metadata": {"finalizers": None}})).ok()
    await gone(api, ns.widgets, "owner")


async def test_foreground_without_dependents_just_goes(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget("owner"))
    (await api.delete(f"{ns.widgets}/owner", {"propagationPolicy": "Foreground"})).ok()
    await gone(api, ns.widgets, "owner")


async def test_orphan_leaves_the_dependents_without_owner(api: Api, ns: Namespace) -> None:
    owner = await api.create(ns.widgets, widget("owner"))
    await api.create(ns.configmaps, owned("child", owner))
    await known_to_the_collector(api, ns)
    (await api.delete(f"{ns.widgets}/owner", {"propagationPolicy": "Orphan"})).ok()
    await gone(api, ns.widgets, "owner")
    assert "ownerReferences" not in (await api.get(f"{ns.configmaps}/child")).ok()["metadata"]


async def test_a_dependent_lives_while_one_owner_lives(api: Api, ns: Namespace) -> None:
    first = await api.create(ns.widgets, widget("first"))
    second = await api.create(ns.widgets, widget("second"))
    child = owned("child", first)
    child["metadata"]["ownerReferences"] += owned("child", second)["metadata"]["ownerReferences"]
    made = await api.create(ns.configmaps, child)
    version = made["metadata"]["resourceVersion"]
    async with api.watch(ns.configmaps, resourceVersion=version, fieldSelector=OURS) as watch:
        (await api.delete(f"{ns.widgets}/first")).ok()
        changed = (await watch.next(WITHIN))["object"]
        assert [ref["name"] for ref in changed["metadata"]["ownerReferences"]] == ["second"]
        (await api.delete(f"{ns.widgets}/second")).ok()
        assert (await watch.next(WITHIN))["type"] == "DELETED"


async def test_an_owner_that_never_was_takes_its_dependent(api: Api, ns: Namespace) -> None:
    owner = widget("ghost")
    owner["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    await api.create(ns.configmaps, owned("child", owner))
    await gone(api, ns.configmaps, "child")


async def test_a_namespace_takes_its_content_along(api: Api, unique: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}}
    await api.create("/api/v1/namespaces", body)
    inside = Namespace(unique)
    await api.create(inside.configmaps, configmap())
    await api.create(inside.widgets, widget())
    (await api.delete(f"/api/v1/namespaces/{unique}")).ok()
    await gone(api, "/api/v1/namespaces", unique)
    assert (await api.get(inside.configmaps)).ok()["items"] == []
    assert (await api.get(inside.widgets)).ok()["items"] == []


async def test_a_namespace_waits_for_what_is_held(api: Api, unique: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}}
    await api.create("/api/v1/namespaces", body)
    inside = Namespace(unique)
    held = widget()
    held["metadata"]["finalizers"] = [HOLD]
    made = await api.create(inside.widgets, held)
    async with api.watch(inside.widgets, resourceVersion=made["metadata"]["resourceVersion"]) as watch:
        (await api.delete(f"/api/v1/namespaces/{unique}")).ok()
        marked = (await watch.next(WITHIN))["object"]
        assert marked["metadata"]["deletionTimestamp"]
    assert (await api.get(f"/api/v1/namespaces/{unique}")).ok()["status"]["phase"] == "Terminating"
    (await api.patch(f"{inside.widgets}/one", {"metadata": {"finalizers": None}})).ok()
    await gone(api, "/api/v1/namespaces", unique)


async def test_a_new_namespace_gets_its_default_service_account(api: Api, ns: Namespace) -> None:
    accounts = ns.path("serviceaccounts")
    async with api.watch(accounts, fieldSelector="metadata.name=default") as watch:
        assert (await watch.next(WITHIN))["type"] == "ADDED"
