"""The StorageClass `local` and blank DataVolumes, on the embedded API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hotvirt.api.resources import DATAVOLUMES, PODS, PVCS, PVS, STORAGECLASSES
from hotvirt.embedded.datavolumes import DataVolumeController
from hotvirt.embedded.garbage import GarbageCollector
from hotvirt.embedded.inventory import Inventory
from hotvirt.embedded.storage import LocalStorage
from hotvirt.kube.client import Client

from .one_machine import NODE, WITHIN, OneMachine, condition, one_machine, pod

Object = dict[str, Any]
MIB = 1 << 20


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[OneMachine]:
    async with one_machine(tmp_path / "s") as made:
        yield made


@pytest.fixture
async def storage(bare: OneMachine) -> LocalStorage:
    return await run_storage(bare, Client)


async def run_storage(machine: OneMachine, client: type[Client]) -> LocalStorage:
    storage = LocalStorage(machine.client_as("system:volumes", client), machine.state.path, NODE)
    machine.run(storage.run())
    await machine.until(STORAGECLASSES, "local", lambda obj: True)
    return storage


@pytest.fixture
async def machine(bare: OneMachine, storage: LocalStorage) -> OneMachine:
    client = bare.client_as("system:kube-controller-manager")
    inventory = Inventory(client)
    for part in (
        inventory.run(),
        GarbageCollector(client, inventory).run(),
        DataVolumeController(client).run(),
    ):
        bare.run(part)
    return bare


def claim(name: str, size: str = "64Mi", **spec: Any) -> Object:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name}, "spec": wanted | spec}


async def bound(machine: OneMachine, name: str) -> tuple[Object, Object]:
    found = await machine.until(PVCS, name, lambda obj: obj["status"].get("phase") == "Bound")
    return found, await machine.client.get(PVS, found["spec"]["volumeName"])


async def test_a_claim_is_bound_to_a_folder_with_a_sparse_disk(machine: OneMachine) -> None:
    await machine.create(PVCS, claim("c"))
    found, volume = await bound(machine, "c")
    assert found["spec"]["storageClassName"] == "local"
    assert found["status"]["capacity"] == {"storage": "64Mi"}
    assert volume["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]
    assert volume["status"]["phase"] == "Bound"
    disk = Path(volume["spec"]["local"]["path"]) / "disk.img"
    assert disk.stat().st_size == 64 * MIB and disk.stat().st_blocks == 0


async def test_a_block_claim_is_the_image_itself(machine: OneMachine) -> None:
    await machine.create(PVCS, claim("c", volumeMode="Block"))
    _, volume = await bound(machine, "c")
    path = Path(volume["spec"]["local"]["path"])
    assert volume["spec"]["volumeMode"] == "Block"
    assert path.is_file() and path.stat().st_size == 64 * MIB


async def test_the_data_goes_with_the_claim(machine: OneMachine) -> None:
    await machine.create(PVCS, claim("c"))
    _, volume = await bound(machine, "c")
    folder = Path(volume["spec"]["local"]["path"])
    await machine.client.delete(PVCS, "c", "default")
    await machine.until_gone(PVS, volume["metadata"]["name"])
    assert not folder.exists()


async def stays_until_its_pod_has_gone(machine: OneMachine, storage: LocalStorage) -> None:
    await machine.create(PVCS, claim("c"))
    _, volume = await bound(machine, "c")
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    await machine.create(PODS, pod("user", "true", spec={"volumes": volumes}))
    await machine.client.delete(PVCS, "c", "default")
    await has_looked_at_deleted(storage, "c")
    still = await machine.client.get(PVCS, "c", "default")
    assert "kubernetes.io/pvc-protection" in still["metadata"]["finalizers"]
    assert (Path(volume["spec"]["local"]["path"]) / "disk.img").exists()
    await machine.client.delete(PODS, "user", "default", grace=0)
    await machine.until_gone(PVS, volume["metadata"]["name"])


async def has_looked_at_deleted(storage: LocalStorage, name: str) -> None:
    """Until the storage has seen that the claim is to go, and has done what it does then."""
    seen = asyncio.Event()
    stop = storage._claims.add_handler(
        lambda _, new: seen.set() if new and new.metadata.name == name and new.metadata.deleting else None
    )
    async with asyncio.timeout(WITHIN):
        await seen.wait()
        await storage._claim_controller.settled()
    stop()


async def test_a_claim_in_use_stays_until_its_pod_has_gone(
    machine: OneMachine, storage: LocalStorage
) -> None:
    await stays_until_its_pod_has_gone(machine, storage)


class LateNews(Client):
    """Nothing is heard of Pods."""

    async def watch(self, resource: Any, *where: Any, **options: Any) -> Any:
        if resource is PODS:
            await asyncio.Event().wait()
        async for event in super().watch(resource, *where, **options):
            yield event


async def test_a_claim_in_use_stays_also_where_its_pod_is_not_known_yet(bare: OneMachine) -> None:
    await stays_until_its_pod_has_gone(bare, await run_storage(bare, LateNews))


async def test_more_than_the_disk_has_is_refused_with_an_event(machine: OneMachine) -> None:
    await machine.create(PVCS, claim("c", "1Ei"))
    assert "requests 1Ei" in (await machine.event("ProvisioningFailed"))["message"]
    assert (await machine.client.get(PVCS, "c", "default"))["status"]["phase"] == "Pending"


async def test_another_class_is_left_alone(machine: OneMachine) -> None:
    await machine.create(PVCS, claim("other", storageClassName="somebody-elses"))
    await machine.create(PVCS, claim("ours"))
    await bound(machine, "ours")
    assert (await machine.client.get(PVCS, "other", "default"))["status"]["phase"] == "Pending"


async def test_a_blank_data_volume_succeeds_and_owns_its_claim(machine: OneMachine) -> None:
    spec = {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "32Mi"}}}}
    await machine.create(DATAVOLUMES, {"metadata": {"name": "dv"}, "spec": spec})
    done = await machine.until(
        DATAVOLUMES, "dv", lambda obj: obj.get("status", {}).get("phase") == "Succeeded"
    )
    assert {c["type"]: c["status"] for c in done["status"]["conditions"]} == {
        "Bound": "True",
        "Ready": "True",
        "Running": "False",
    }
    assert done["status"]["progress"] == "100.0%"
    found, volume = await bound(machine, "dv")
    assert found["metadata"]["ownerReferences"][0]["uid"] == done["metadata"]["uid"]
    assert (Path(volume["spec"]["local"]["path"]) / "disk.img").stat().st_size == 32 * MIB
    await machine.client.delete(DATAVOLUMES, "dv", "default", propagation="Background")
    await machine.until_gone(PVS, volume["metadata"]["name"])


async def test_another_source_says_what_is_supported(machine: OneMachine) -> None:
    spec = {
        "source": {"http": {"url": "http://example.com/disk.img"}},
        "pvc": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "32Mi"}}},
    }
    await machine.create(DATAVOLUMES, {"metadata": {"name": "dv"}, "spec": spec})
    waiting = await machine.until(
        DATAVOLUMES, "dv", lambda obj: obj.get("status") and condition(obj, "Ready") is not None
    )
    ready = condition(waiting, "Ready")
    assert waiting["status"]["phase"] == "Pending"
    assert ready and ready["message"].startswith("spec.source.http is not supported yet")


async def test_a_claim_of_somebody_else_is_not_taken_over(machine: OneMachine) -> None:
    await machine.create(PVCS, claim("dv"))
    await bound(machine, "dv")
    spec = {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "32Mi"}}}}
    await machine.create(DATAVOLUMES, {"metadata": {"name": "dv"}, "spec": spec})
    waiting = await machine.until(
        DATAVOLUMES, "dv", lambda obj: obj.get("status") and condition(obj, "Ready")
    )
    ready = condition(waiting, "Ready")
    assert ready and ready["reason"] == "ErrResourceExists"
    await machine.client.delete(PVCS, "dv", "default")
    await machine.until(DATAVOLUMES, "dv", lambda obj: obj["status"]["phase"] == "Succeeded")
