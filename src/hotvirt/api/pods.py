"""Pods: what runs a machine, and what the kubelet says about it."""

from __future__ import annotations

from typing import Any

from msgspec import field

from hotvirt.api.conditions import Condition
from hotvirt.api.meta import Kind, Struct
from hotvirt.api.quantity import Quantity

Quantities = dict[str, Quantity]


class ResourceRequirements(Struct, frozen=True):
    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)


class EnvVar(Struct, frozen=True):
    name: str = ""
    value: str = ""
    value_from: dict[str, Any] | None = None


class VolumeMount(Struct, frozen=True):
    name: str = ""
    mount_path: str = ""
    read_only: bool = False
    sub_path: str = ""


class VolumeDevice(Struct, frozen=True):
    name: str = ""
    device_path: str = ""


class ExecAction(Struct, frozen=True):
    command: tuple[str, ...] = ()


class LifecycleHandler(Struct, frozen=True):
    exec: ExecAction | None = None


class Lifecycle(Struct, frozen=True):
    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None


class ContainerPort(Struct, frozen=True):
    name: str = ""
    container_port: int = 0
    protocol: str = "TCP"


class ResizePolicy(Struct, frozen=True):
    resource_name: str = ""
    restart_policy: str = ""


class Container(Struct, frozen=True):
    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: tuple[ResizePolicy, ...] = ()
    restart_policy: str | None = None
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    lifecycle: Lifecycle | None = None
    liveness_probe: dict[str, Any] | None = None
    readiness_probe: dict[str, Any] | None = None
    startup_probe: dict[str, Any] | None = None
    security_context: dict[str, Any] | None = None
    stdin: bool = False
    tty: bool = False


class EmptyDirSource(Struct, frozen=True):
    medium: str = ""
    size_limit: Quantity | None = None


class ClaimSource(Struct, frozen=True):
    claim_name: str = ""
    read_only: bool = False


class SecretSource(Struct, frozen=True):
    secret_name: str = ""
    items: tuple[dict[str, Any], ...] = ()
    optional: bool = False
    default_mode: int | None = None


class ConfigMapSource(Struct, frozen=True):
    name: str = ""
    items: tuple[dict[str, Any], ...] = ()
    optional: bool = False
    default_mode: int | None = None


class ImageSource(Struct, frozen=True):
    reference: str = ""
    pull_policy: str = ""


class HostPathSource(Struct, frozen=True):
    path: str = ""
    type: str = ""


class PodVolume(Struct, frozen=True):
    name: str = ""
    empty_dir: EmptyDirSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    secret: SecretSource | None = None
    config_map: ConfigMapSource | None = None
    image: ImageSource | None = None
    host_path: HostPathSource | None = None


class PodSpec(Struct, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[PodVolume, ...] = ()
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: dict[str, Any] | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    overhead: Quantities = field(default_factory=dict)
    resources: ResourceRequirements | None = None
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    hostname: str = ""
    subdomain: str = ""
    host_network: bool = False
    security_context: dict[str, Any] | None = None
    readiness_gates: tuple[dict[str, Any], ...] = ()


class StateWaiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class StateRunning(Struct, frozen=True):
    started_at: str | None = None


class StateTerminated(Struct, frozen=True):
    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = field(default="", name="containerID")


class ContainerState(Struct, frozen=True):
    waiting: StateWaiting | None = None
    running: StateRunning | None = None
    terminated: StateTerminated | None = None


class ContainerStatus(Struct, frozen=True):
    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = field(default="", name="imageID")
    container_id: str = field(default="", name="containerID")
    started: bool | None = None
    allocated_resources: Quantities = field(default_factory=dict)
    resources: ResourceRequirements | None = None


class PodIP(Struct, frozen=True):
    ip: str = ""


class PodStatus(Struct, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    pod_ip: str = field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = field(default=(), name="podIPs")
    host_ip: str = field(default="", name="hostIP")
    start_time: str | None = None
    qos_class: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    observed_generation: int | None = None


class Pod(Kind, frozen=True):
    api_version: str = "v1"
    kind: str = "Pod"
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
