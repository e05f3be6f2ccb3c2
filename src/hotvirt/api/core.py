"""The kinds of Kubernetes itself that Hotvirt reads, as far as it reads them."""

from __future__ import annotations

from typing import Any

from msgspec import field

from hotvirt.api.conditions import Condition
from hotvirt.api.meta import Kind, Struct
from hotvirt.api.pods import (
    Container,
    ContainerState,
    ContainerStatus,
    EnvVar,
    Pod,
    PodSpec,
    PodStatus,
    PodVolume,
    ResourceRequirements,
    VolumeMount,
)
from hotvirt.api.quantity import Quantity

__all__ = [
    "ClaimSpec",
    "ClaimStatus",
    "ConfigMap",
    "Container",
    "ContainerState",
    "ContainerStatus",
    "ControllerRevision",
    "EnvVar",
    "Event",
    "EventSource",
    "Lease",
    "LeaseSpec",
    "LimitRange",
    "LimitRangeItem",
    "LimitRangeSpec",
    "LocalObjectReference",
    "Namespace",
    "NamespaceSpec",
    "NamespaceStatus",
    "Node",
    "NodeSpec",
    "NodeStatus",
    "ObjectReference",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodSpec",
    "PodStatus",
    "PodVolume",
    "ResourceQuota",
    "ResourceQuotaSpec",
    "ResourceQuotaStatus",
    "ResourceRequirements",
    "Secret",
    "StorageClass",
    "Taint",
    "VolumeMount",
    "VolumeSpec",
    "VolumeStatus",
]

Quantities = dict[str, Quantity]


class LocalObjectReference(Struct, frozen=True):
    name: str = ""


class ObjectReference(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class Taint(Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = field(default="", name="providerID")


class NodeAddress(Struct, frozen=True):
    type: str = ""
    address: str = ""


class NodeStatus(Struct, frozen=True):
    capacity: Quantities = field(default_factory=dict)
    allocatable: Quantities = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: dict[str, Any] = field(default_factory=dict)


class Node(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "Node"
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceSpec(Struct, frozen=True):
    finalizers: tuple[str, ...] = ()


class NamespaceStatus(Struct, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class Namespace(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "Namespace"
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class ClaimSpec(Struct, frozen=True):
    access_modes: tuple[str, ...] = ()
    resources: ResourceRequirements | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_name: str = ""
    selector: dict[str, Any] | None = None
    data_source: dict[str, Any] | None = None
    data_source_ref: dict[str, Any] | None = None


class ClaimStatus(Struct, frozen=True):
    phase: str = ""
    access_modes: tuple[str, ...] = ()
    capacity: Quantities = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class PersistentVolumeClaim(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "PersistentVolumeClaim"
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class PathSource(Struct, frozen=True):
    path: str = ""


class VolumeSpec(Struct, frozen=True):
    capacity: Quantities = field(default_factory=dict)
    access_modes: tuple[str, ...] = ()
    persistent_volume_reclaim_policy: str = ""
    storage_class_name: str = ""
    volume_mode: str | None = None
    claim_ref: ObjectReference | None = None
    local: PathSource | None = None
    host_path: PathSource | None = None
    node_affinity: dict[str, Any] | None = None


class VolumeStatus(Struct, frozen=True):
    phase: str = ""
    message: str = ""
    reason: str = ""


class PersistentVolume(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "PersistentVolume"
    spec: VolumeSpec = VolumeSpec()
    status: VolumeStatus = VolumeStatus()


class StorageClass(Kind, frozen=True):
    api_version: str = "storage.k8s.io/v1"
    kind: str = "StorageClass"
    provisioner: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    reclaim_policy: str = "Delete"
    volume_binding_mode: str = "Immediate"
    allow_volume_expansion: bool = False


class EventSource(Struct, frozen=True):
    component: str = ""
    host: str = ""


class Event(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "Event"
    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
    action: str = ""


class Secret(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "Secret"
    type: str = ""
    data: dict[str, str] = field(default_factory=dict)
    string_data: dict[str, str] = field(default_factory=dict)
    immutable: bool | None = None


class ConfigMap(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "ConfigMap"
    data: dict[str, str] = field(default_factory=dict)
    binary_data: dict[str, str] = field(default_factory=dict)
    immutable: bool | None = None


class ResourceQuotaSpec(Struct, frozen=True):
    hard: Quantities = field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    scope_selector: dict[str, Any] | None = None


class ResourceQuotaStatus(Struct, frozen=True):
    hard: Quantities = field(default_factory=dict)
    used: Quantities = field(default_factory=dict)


class ResourceQuota(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "ResourceQuota"
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class LimitRangeItem(Struct, frozen=True):
    type: str = ""
    min: Quantities = field(default_factory=dict)
    max: Quantities = field(default_factory=dict)
    default: Quantities = field(default_factory=dict)
    default_request: Quantities = field(default_factory=dict)
    max_limit_request_ratio: Quantities = field(default_factory=dict)


class LimitRangeSpec(Struct, frozen=True):
    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "LimitRange"
    spec: LimitRangeSpec = LimitRangeSpec()


class ControllerRevision(Kind, frozen=True):
    api_version: str = "apps/v1"
    kind: str = "ControllerRevision"
    revision: int = 0
    data: dict[str, Any] = field(default_factory=dict)


class LeaseSpec(Struct, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Kind, frozen=True):
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    spec: LeaseSpec = LeaseSpec()
