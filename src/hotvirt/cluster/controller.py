"""`hotvirt-controller`: answers the API server on every replica, and on the leader runs the controllers.

The API server asks through webhooks and the aggregated API; any replica answers, with nothing to agree on.
One replica holds the Lease: it makes what VMs need, and keeps the certificates. When the lead is lost, its
work is cancelled before another can begin.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any, NoReturn

import uvloop

from hotvirt import __version__
from hotvirt.admission.lookups import client_lookup, remembered
from hotvirt.admission.room import Room
from hotvirt.admission.webhooks import Admission
from hotvirt.api import names
from hotvirt.api.kubevirt import KubeVirt
from hotvirt.api.resources import CONTROLLERREVISIONS, KUBEVIRTS, VMIS
from hotvirt.controllers.manager import Manager
from hotvirt.kube.client import Client
from hotvirt.kube.config import ClientConfig
from hotvirt.kube.errors import AlreadyExists
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informer
from hotvirt.kube.lease import Election
from hotvirt.kube.memory import quiet_the_collector
from hotvirt.plan.config import ClusterConfig, cluster_config
from hotvirt.subresources.app import make_app

from .authorize import Authorizer
from .certificates import FolderSource, Keeper, SecretSource, Source
from .console import ClusterStreams
from .front_proxy import FrontProxy
from .health import LEADER, Health
from .process import end, first_failure, may_work, run
from .serving import Serving
from .settings import GIVEN, ControllerSettings, api_access

log = logging.getLogger(__name__)
COMPONENT = "hotvirt-controller"


class ControllerProcess:
    def __init__(self, settings: ControllerSettings, access: ClientConfig) -> None:
        self._settings = settings
        self.health = Health()
        self._client = Client(access, f"{COMPONENT}/{__version__}")
        client = self._client
        self._source: Source = (
            FolderSource(settings.certificates_folder)
            if settings.certificates == GIVEN
            else SecretSource(client)
        )
        self._kubevirts = Informer(client, KUBEVIRTS, KubeVirt, namespace=names.NAMESPACE)
        self._room = Room(client)
        self._front_proxy = FrontProxy(client)
        self.serving = Serving(
            settings.address,
            settings.port,
            self._source,
            self._front_proxy,
            Authorizer(client),
            Admission(
                self._config,
                vmi=client_lookup(client, VMIS),
                revision=remembered(client_lookup(client, CONTROLLERREVISIONS)),
                around=self._room.around,
            ),
            make_app(client, ClusterStreams(client, self._source)),
        )
        self.election = Election(client, names.NAMESPACE, names.CONTROLLER_LEASE, settings.identity)
        LEADER.labels(names.CONTROLLER_LEASE).set(0)
        self.health.not_ready("cluster", "it is being looked at")
        self.health.unless("certificate", self.serving.not_ready)
        self.health.unless("users", self._front_proxy.not_ready)
        self.health.unless("settings", self._settings_not_read)

    async def run(self, stopping: asyncio.Event) -> None:
        settings = self._settings
        async with self._client:
            await self.health.start(settings.address, settings.health_port)
            try:
                if await may_work(self._client, self.health, stopping):
                    await self._work(stopping)
            finally:
                await self.health.stop()

    async def _work(self, stopping: asyncio.Event) -> None:
        changed = self.serving.changed
        parts: dict[str, Coroutine[Any, Any, None]] = {
            "settings": self._kubevirts.run(),
            "room": self._room.run(),
            "certificate": self._source.run(changed),
            "request headers": self._front_proxy.run(changed),
            "serving": self.serving.run(),
        }
        answering = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        leading = asyncio.create_task(self.election.run(self._lead), name="election")
        try:
            await first_failure([*answering, leading], stopping)
            self.health.not_ready("end", "it is asked to end")
            log.info("gives the lead back, and answers until the cluster knows that it goes")
            self.serving.leave()
            await end([leading])
            # Nobody tells when every API server has heard of it; those that have not still call here.
            await asyncio.sleep(self._settings.drain)
        finally:
            await end([leading, *answering])

    async def _lead(self) -> None:
        """The work of the leader, made anew each time."""
        recorder = Recorder(self._client, COMPONENT)
        manager = Manager(self._client, recorder, platform=self._settings.platform)
        keeper = Keeper(self._client, self._source, self._settings.lifetimes)
        LEADER.labels(names.CONTROLLER_LEASE).set(1)
        try:
            await self._make_kubevirt()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(keeper.run(), name="certificates")
                tasks.create_task(manager.run(), name="controllers")
                await manager.synced()
                quiet_the_collector()
                log.info("the controllers are at work")
        finally:
            LEADER.labels(names.CONTROLLER_LEASE).set(0)
            await recorder.close()

    async def _make_kubevirt(self) -> None:
        """The settings object that users know: it cannot be applied together with its CRD."""
        place = {"name": names.KUBEVIRT_NAME, "namespace": names.NAMESPACE}
        wanted = {
            "apiVersion": KUBEVIRTS.api_version,
            "kind": KUBEVIRTS.kind,
            "metadata": place | {"labels": {names.LABEL_PART_OF: names.PART_OF}},
            "spec": self._settings.kubevirt,
        }
        try:
            await self._client.create(KUBEVIRTS, wanted, names.NAMESPACE)
        except AlreadyExists:
            log.debug("the KubeVirt object is there")

    def _config(self) -> ClusterConfig:
        """The settings of the KubeVirt object; not ready until it has been looked for."""
        return cluster_config(self._kubevirts.get(names.NAMESPACE, names.KUBEVIRT_NAME))

    def _settings_not_read(self) -> str | None:
        return None if self._kubevirts.has_synced else "the KubeVirt object has not been read yet"


def main() -> NoReturn:
    async def serve(stopping: asyncio.Event) -> None:
        await ControllerProcess(ControllerSettings.of(os.environ), api_access()).run(stopping)

    run(COMPONENT, serve, uvloop.run)
