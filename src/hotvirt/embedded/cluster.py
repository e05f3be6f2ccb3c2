"""What kube-scheduler, kube-controller-manager and CDI do on a cluster, as far as one machine needs it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hotvirt.kube.client import Client

from .datavolumes import DataVolumeController
from .garbage import GarbageCollector
from .inventory import Inventory
from .namespaces import NamespaceController
from .scheduler import Scheduler
from .storage import LocalStorage


class ClusterControllers:
    """Two identities, as on a cluster: the scheduler's and the controller manager's."""

    def __init__(
        self, scheduler_client: Client, client: Client, state_dir: Path, node_name: str, root_ca: str = ""
    ) -> None:
        self.inventory = Inventory(client)
        self.scheduler = Scheduler(scheduler_client)
        self.garbage = GarbageCollector(client, self.inventory)
        self.namespaces = NamespaceController(client, self.inventory, root_ca)
        self.storage = LocalStorage(client, state_dir, node_name)
        self.data_volumes = DataVolumeController(client)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.inventory.run(), name="inventory")
            tasks.create_task(self.namespaces.informer.run(), name="informer of namespaces")
            tasks.create_task(self.garbage.run(), name="garbage collector")
            tasks.create_task(self.namespaces.run(), name="namespaces")
            tasks.create_task(self.scheduler.run(), name="scheduler")
            tasks.create_task(self.storage.run(), name="local storage")
            tasks.create_task(self.data_volumes.run(), name="DataVolumes")

    async def synced(self) -> None:
        """Until all caches are filled."""
        await self.inventory.synced()
        for part in (self.scheduler, self.storage, self.data_volumes):
            await part.synced()
