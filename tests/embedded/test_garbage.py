"""Garbage collection and the end of namespaces, on the embedded API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hotvirt.api.resources import CONFIGMAPS, CRDS, NAMESPACES, SECRETS, SERVICEACCOUNTS, Resource
from hotvirt.embedded.garbage import GarbageCollector
from hotvirt.embedded.inventory import Inventory
from hotvirt.embedded.namespaces import NamespaceController

from .one_machine import OneMachine, one_machine

Object = dict[str, Any]


@pytest.fixture(params=["as a part", "over a socket"])
async def machine(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[OneMachine]:
    user = "system:kube-controller-manager"
    async with one_machine(tmp_path / "s") as made:
        part = request.param == "as a part"
        client = made.part_as(user, patient=True) if part else made.client_as(user)
        inventory = Inventory(client)
        namespaces = NamespaceController(client, inventory, "the CA")
        collector = GarbageCollector(client, inventory)
        for part in (inventory.run(), namespaces.informer.run(), namespaces.run(), collector.run()):
            made.run(part)
        yield made


async def made(
    machine: OneMachine, name: str, *owners: Object, block: bool = False, **metadata: Any
) -> Object:
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]
    return await machine.create(
        CONFIGMAPS, {"metadata": {"name": name, "ownerReferences": references, **metadata}}
    )


async def exists(machine: OneMachine, name: str) -> bool:
    found = await machine.client.list(CONFIGMAPS, "default", field_selector=f"metadata.name={name}")
    return bool(found.items)


async def delete(machine: OneMachine, name: str, propagation: str) -> None:
    await machine.client.delete(CONFIGMAPS, name, "default", propagation=propagation)


async def test_dependents_go_with_their_owner_and_theirs_with_them(machine: OneMachine) -> None:
    owner = await made(machine, "owner")
    child = await made(machine, "child", owner)
    await made(machine, "grandchild", child)
    await delete(machine, "owner", "Background")
    await machine.until_gone(CONFIGMAPS, "grandchild")
    assert not await exists(machine, "child")


@pytest.mark.parametrize("busy", [False, True])
async def test_orphans_stay_however_new_they_are_and_whatever_else_happens(
    machine: OneMachine, busy: bool
) -> None:
    """What the collector knows of owners and of dependents comes by different watches."""

    async def other_things() -> None:
        await made(machine, "other")
        number = 0
        while True:
            number += 1
            await machine.client.patch(CONFIGMAPS, "other", {"data": {"n": str(number)}}, "default")

    if busy:
        machine.run(other_things())
    for number in range(12):
        owner = await made(machine, f"owner{number}")
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": f"owner{number}"}
        owned = {"ownerReferences": [reference | {"uid": owner["metadata"]["uid"]}]}
        for dependent in range(2):
            await machine.create(SECRETS, {"metadata": {"name": f"kept{number}-{dependent}", **owned}})
        await delete(machine, f"owner{number}", "Orphan")
        await machine.until_gone(CONFIGMAPS, f"owner{number}")
    # When this one has been found to have no owner, all that came before it has been looked at.
    forged = {"ownerReferences": [reference | {"uid": "11111111-1111-1111-1111-111111111111"}]}
    await machine.create(SECRETS, {"metadata": {"name": "last", **forged}})
    await machine.until_gone(SECRETS, "last")
    secrets = (await machine.client.list(SECRETS, "default")).items
    kept = [each["metadata"] for each in secrets if each["metadata"]["name"].startswith("kept")]
    assert len(kept) == 24
    assert not any(each.get("ownerReferences") for each in kept)


async def test_what_has_another_owner_stays_and_forgets_the_first(machine: OneMachine) -> None:
    first, second = await made(machine, "first"), await made(machine, "second")
    await made(machine, "child", first, second)
    await delete(machine, "first", "Background")
    child = await machine.until(CONFIGMAPS, "child", lambda obj: len(obj["metadata"]["ownerReferences"]) == 1)
    assert child["metadata"]["ownerReferences"][0]["name"] == "second"


async def test_an_owner_that_never_was_is_absent_by_uid(machine: OneMachine) -> None:
    real = await made(machine, "real")
    forged = {"metadata": {"name": "real", "uid": "11111111-1111-1111-1111-111111111111"}}
    await made(machine, "child", forged)
    await machine.until_gone(CONFIGMAPS, "child")
    assert await exists(machine, real["metadata"]["name"])


async def test_foreground_waits_for_those_that_block(machine: OneMachine) -> None:
    owner = await made(machine, "owner")
    await made(machine, "child", owner, block=True, finalizers=["example.com/hold"])
    await delete(machine, "owner", "Foreground")
    await machine.until(CONFIGMAPS, "child", lambda obj: obj["metadata"].get("deletionTimestamp"))
    assert await exists(machine, "owner")
    await machine.client.patch(CONFIGMAPS, "child", {"metadata": {"finalizers": None}}, "default")
    await machine.until_gone(CONFIGMAPS, "owner")


async def test_foreground_does_not_wait_for_those_that_do_not(machine: OneMachine) -> None:
    owner = await made(machine, "owner")
    await made(machine, "child", owner, finalizers=["example.com/hold"])
    await delete(machine, "owner", "Foreground")
    await machine.until_gone(CONFIGMAPS, "owner")
    child = await machine.until(CONFIGMAPS, "child", lambda obj: obj["metadata"].get("deletionTimestamp"))
    assert child["metadata"]["finalizers"] == ["example.com/hold"]
    await machine.client.patch(CONFIGMAPS, "child", {"metadata": {"finalizers": None}}, "default")


async def test_orphans_stay_without_an_owner(machine: OneMachine) -> None:
    owner = await made(machine, "owner")
    await made(machine, "child", owner)
    await delete(machine, "owner", "Orphan")
    await machine.until_gone(CONFIGMAPS, "owner")
    child = await machine.client.get(CONFIGMAPS, "child", "default")
    assert not child["metadata"].get("ownerReferences")


async def test_two_that_own_each_other_both_go(machine: OneMachine) -> None:
    one = await made(machine, "one")
    two = await made(machine, "two", one, block=True)
    back = {"apiVersion": "v1", "kind": "ConfigMap", "name": "two", "uid": two["metadata"]["uid"]}
    patch = {"metadata": {"ownerReferences": [back | {"blockOwnerDeletion": True}]}}
    await machine.client.patch(CONFIGMAPS, "one", patch, "default")
    await delete(machine, "one", "Foreground")
    await machine.until_gone(CONFIGMAPS, "one")
    await machine.until_gone(CONFIGMAPS, "two")


async def test_a_new_kind_is_collected_too(machine: OneMachine) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    await machine.create(CRDS, crd)
    await machine.until(
        CRDS,
        "things.example.com",
        lambda obj: any(
            c["type"] == "Established" and c["status"] == "True"
            for c in obj["status"].get("conditions") or []
        ),
    )
    things = Resource("example.com", "v1", "things", "thing", "Thing")
    thing = await machine.create(things, {"metadata": {"name": "t"}})
    reference = {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "name": "t",
        "uid": thing["metadata"]["uid"],
    }
    await machine.create(SECRETS, {"metadata": {"name": "s", "ownerReferences": [reference]}})
    await machine.client.delete(things, "t", "default", propagation="Background")
    await machine.until_gone(SECRETS, "s")


async def test_a_namespace_is_furnished(machine: OneMachine) -> None:
    await machine.create(NAMESPACES, {"metadata": {"name": "ns"}})
    await machine.until(SERVICEACCOUNTS, "default", lambda obj: True, "ns")
    config = await machine.until(CONFIGMAPS, "kube-root-ca.crt", lambda obj: True, "ns")
    assert config["data"] == {"ca.crt": "the CA"}


async def test_a_namespace_goes_when_it_is_empty(machine: OneMachine) -> None:
    await machine.create(NAMESPACES, {"metadata": {"name": "ns"}})
    held = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
    await machine.create(SECRETS, held, "ns")
    await machine.create(SECRETS, {"metadata": {"name": "free"}}, "ns")
    await machine.client.delete(NAMESPACES, "ns")

    def explained(obj: Object) -> bool:
        conditions = {c["type"]: c for c in obj["status"].get("conditions") or []}
        remaining = conditions.get("NamespaceFinalizersRemaining")
        return bool(remaining and remaining["status"] == "True")

    waiting = await machine.until(NAMESPACES, "ns", explained)
    assert waiting["status"]["phase"] == "Terminating"
    said = {c["type"]: c["message"] for c in waiting["status"]["conditions"]}
    assert "example.com/hold in 1 resource instances" in said["NamespaceFinalizersRemaining"]
    await machine.until_gone(SECRETS, "free", "ns")
    await machine.client.patch(SECRETS, "held", {"metadata": {"finalizers": None}}, "ns")
    await machine.until_gone(NAMESPACES, "ns")
