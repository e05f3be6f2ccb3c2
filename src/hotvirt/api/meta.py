"""What every object carries: its metadata, its owners, and times as Kubernetes writes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import field


class Struct(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, rename="camel"):
    """A typed view: snake_case here, camelCase on the wire."""


class Empty(Struct, frozen=True):
    """An object whose presence is all it says."""


class OwnerReference(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Struct, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def deleting(self) -> bool:
        return self.deletion_timestamp is not None

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name), as queues and caches name an object."""
        return self.namespace, self.name

    def controller_of(self) -> OwnerReference | None:
        """The owner that controls this object."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Kind(Struct, frozen=True):
    """An object of the API.

    Subclasses give apiVersion and kind their defaults, because the items of a list come without them.
    """

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


def now() -> str:
    """The time in RFC 3339 with seconds, as metav1.Time."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(seconds: float) -> str:
    """Seconds since the epoch in RFC 3339 with microseconds, as metav1.MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now_micro() -> str:
    return micro_time(time.time())


def parse_time(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time."""
    return datetime.fromisoformat(text).timestamp()


def owner_reference(obj: Kind | Mapping[str, Any], controller: bool = True) -> dict[str, Any]:
    """The reference that an object which belongs to obj carries."""
    if isinstance(obj, Kind):
        api_version, kind = obj.api_version, obj.kind
        name, uid = obj.metadata.name, obj.metadata.uid
    else:
        api_version, kind = obj["apiVersion"], obj["kind"]
        name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
    reference: dict[str, Any] = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}
    if controller:
        reference |= {"controller": True, "blockOwnerDeletion": True}
    return reference
