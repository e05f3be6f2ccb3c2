"""The certificate that Hotvirt shows on a cluster: where each replica gets it, and how the leader keeps it.

"own": the leader makes a CA and a serving certificate in a Secret, renews them in time, and writes the CA to
where it is looked for: the webhook configurations and APIServices (for the API server), and a ConfigMap (for
the node agents). "given": somebody else (cert-manager) does, and mounts the Secret; only the ConfigMap is
written. Every replica follows the Secret, or the files, and shows a new certificate without a restart.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from hotvirt.api import names
from hotvirt.api.core import ConfigMap, Secret
from hotvirt.api.meta import Kind
from hotvirt.api.resources import (
    APISERVICES,
    CONFIGMAPS,
    MUTATINGWEBHOOKS,
    SECRETS,
    VALIDATINGWEBHOOKS,
    Resource,
)
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.informer import Informer, Key
from hotvirt.kube.x509 import certificates, load_pair
from hotvirt.node.inotify import FolderWatch

from .lifetimes import Certificates, Lifetimes, due, next_look

log = logging.getLogger(__name__)
CA, CA_KEY, CHAIN, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
API_SERVICES = ("v1.subresources.kubevirt.io", "v1alpha3.subresources.kubevirt.io")
WORK: Key = ("", "certificates")
LOOK_AGAIN = 60.0
MISSING = (
    "The {kind} {name} is missing in namespace kubevirt: it comes with Hotvirt's chart. Install it again."
)
"""Hotvirt has no right to make Secrets: that right cannot be limited to one name."""


@dataclass(frozen=True)
class Shown:
    """What a process shows and trusts: its certificate with chain, the key, and Hotvirt's CAs."""

    chain: bytes
    key: bytes
    ca: bytes


class Source(Protocol):
    """Where the certificate comes from; `run` tells of each change, also of the first one."""

    @property
    def shown(self) -> Shown | None: ...

    async def run(self, changed: Callable[[], None]) -> None: ...


class SecretSource:
    """The Secret that the leader keeps."""

    def __init__(self, client: Client) -> None:
        self.informer = only(client, SECRETS, Secret, names.CERTIFICATES_SECRET, names.NAMESPACE)

    @property
    def shown(self) -> Shown | None:
        secret = self.informer.get(names.NAMESPACE, names.CERTIFICATES_SECRET)
        held = None if secret is None else held_in(secret)
        if held is None:
            return None
        return Shown(held.serving.certificate_pem, held.serving.key_pem, held.bundle)

    async def run(self, changed: Callable[[], None]) -> None:
        self.informer.add_handler(lambda _old, _new: changed())
        await self.informer.run()


class FolderSource:
    """A mounted Secret: the kubelet changes its files in one step, by moving a link."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shown: Shown | None = None

    async def run(self, changed: Callable[[], None]) -> None:
        moved = asyncio.Event()
        watch = FolderWatch()
        try:
            folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                watch.watch(folder, moved.set)
                while True:
                    moved.clear()
                    shown = self._read()
                    if shown is not None and shown != self.shown:
                        self.shown = shown
                        changed()
                    await moved.wait()
            finally:
                os.close(folder)
        finally:
            watch.close()

    def _read(self) -> Shown | None:
        try:
            chain, key, ca = ((self._folder / file).read_bytes() for file in (CHAIN, KEY, CA))
        except OSError as error:
            log.error("the certificate that was to be given is not there: %s", error)
            return None
        return Shown(chain, key, ca)


def held_in(secret: Secret) -> Certificates | None:
    """What a Secret holds; None when it cannot be used."""
    if not secret.data:
        return None  # as it is installed: the leader fills it
    try:
        data = {name: base64.b64decode(value) for name, value in secret.data.items()}
        bundle = certificates(data[CA])
        return Certificates(
            ca=load_pair(data[CA], data[CA_KEY]),
            older=tuple(bundle[1:]),
            serving=load_pair(data[CHAIN], data[KEY]),
        )
    except (KeyError, ValueError, binascii.Error) as error:
        log.warning("the Secret %s cannot be used: %s", secret.metadata.name, error)
        return None


def as_data(held: Certificates) -> dict[str, str]:
    parts = {
        CA: held.bundle,
        CA_KEY: held.ca.key_pem,
        CHAIN: held.serving.certificate_pem,
        KEY: held.serving.key_pem,
    }
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}


class Keeper:
    """The leader's work. What is published is the bundle in the Secret, never one that is only thought of."""

    def __init__(
        self,
        client: Client,
        source: Source,
        lifetimes: Lifetimes,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._source = source
        self._lifetimes = lifetimes
        self._clock = clock
        self._config_map = only(client, CONFIGMAPS, ConfigMap, names.CA_CONFIGMAP, names.NAMESPACE)
        self._others: list[Informer[Kind]] = []
        self._secret = source.informer if isinstance(source, SecretSource) else None
        if self._secret is not None:
            self._others = [
                only(client, MUTATINGWEBHOOKS, Kind, names.WEBHOOKS),
                only(client, VALIDATINGWEBHOOKS, Kind, names.WEBHOOKS),
                *(only(client, APISERVICES, Kind, name) for name in API_SERVICES),
            ]
        self._controller = Controller("certificates", self._sync, workers=1)
        for informer in (self._config_map, *self._others):
            self._controller.watch(informer, lambda _: [WORK])

    async def run(self) -> None:
        """Until cancelled. The Secret's informer is run by whoever made the source, and outlives us."""
        with ExitStack() as stack:
            if self._secret is not None:
                await self._secret.synced()
                stack.callback(self._secret.add_handler(lambda _old, _new: self._controller.queue.add(WORK)))
            async with asyncio.TaskGroup() as tasks:
                for informer in (self._config_map, *self._others):
                    tasks.create_task(informer.run())
                self._controller.queue.add(WORK)
                tasks.create_task(self._controller.run())

    async def _sync(self, _key: Key) -> float | None:
        if self._secret is None:
            shown = self._source.shown
            if shown is not None:
                await self._publish_config_map(shown.ca)
            return LOOK_AGAIN
        secret = self._secret.get(names.NAMESPACE, names.CERTIFICATES_SECRET)
        if secret is None:
            log.error("%s", MISSING.format(kind="Secret", name=names.CERTIFICATES_SECRET))
            return LOOK_AGAIN
        held = held_in(secret)
        if held is not None:
            await self._publish_config_map(held.bundle)
            await self._publish_to_api_server(held.bundle)
        now = self._clock()
        wanted = due(held, self._lifetimes, now)
        if wanted is not held:
            await self._write(secret, wanted)
            return None  # its event brings us back, and what was written is published
        return next_look(wanted, self._lifetimes, now).total_seconds()

    async def _write(self, secret: Secret, wanted: Certificates) -> None:
        patch = {
            "metadata": {"resourceVersion": secret.metadata.resource_version},
            "data": as_data(wanted),
        }
        await self._client.patch(SECRETS, names.CERTIFICATES_SECRET, patch, names.NAMESPACE)
        log.info("renewed certificates; the serving certificate is valid until %s", wanted.serving.ends)

    async def _publish_config_map(self, bundle: bytes) -> None:
        data = {CA: bundle.decode()}
        existing = self._config_map.get(names.NAMESPACE, names.CA_CONFIGMAP)
        if existing is None:
            log.error("%s", MISSING.format(kind="ConfigMap", name=names.CA_CONFIGMAP))
        elif existing.data != data:
            await self._client.patch(CONFIGMAPS, names.CA_CONFIGMAP, {"data": data}, names.NAMESPACE)

    async def _publish_to_api_server(self, bundle: bytes) -> None:
        encoded = base64.b64encode(bundle).decode()
        for informer in self._others:
            for name in [each.metadata.name for each in informer.list()]:
                obj = informer.raw(None, name) or {}
                patch = trusting(informer.resource, obj, encoded)
                if patch:
                    await self._client.patch(informer.resource, name, patch, kind=_kind(informer.resource))
                    log.info("%s %s trusts Hotvirt's CA", informer.resource.kind, name)


def trusting(resource: Resource, obj: dict[str, Any], bundle: str) -> dict[str, Any] | None:
    """The patch that makes a webhook configuration or an APIService trust the bundle; None: it does."""
    if resource is APISERVICES:
        spec = obj.get("spec") or {}
        if (spec.get("service") or {}).get("name") != names.API_SERVICE or spec.get("caBundle") == bundle:
            return None
        return {"spec": {"caBundle": bundle}}
    webhooks = [
        {"name": webhook["name"], "clientConfig": {"caBundle": bundle}}
        for webhook in obj.get("webhooks") or ()
        if webhook["clientConfig"].get("caBundle") != bundle
    ]
    return {"webhooks": webhooks} if webhooks else None


def _kind(resource: Resource) -> Any:
    return "merge" if resource is APISERVICES else "strategic"


def only(
    client: Client, resource: Resource, cls: Any, name: str, namespace: str | None = None
) -> Informer[Any]:
    """One object, followed: what a role that names it allows."""
    return Informer(client, resource, cls, namespace=namespace, field_selector=f"metadata.name={name}")
