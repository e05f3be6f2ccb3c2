"""``kubevirt.io/v1``: the virtual machine, its running instance, and its migration.

The machine's description lies in ``domain``, what it is connected to in ``volumes``, the cluster's settings
in ``cluster``; all of their names can be had from here.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from hotvirt.api.cdi import DataVolumeTemplate
from hotvirt.api.cluster import (
    DeveloperConfiguration,
    KubeVirt,
    KubeVirtConfiguration,
    KubeVirtSpec,
    KubeVirtStatus,
    LiveUpdateConfiguration,
    WorkloadUpdateStrategy,
)
from hotvirt.api.conditions import Condition
from hotvirt.api.domain import (
    CPU,
    Bios,
    Bootloader,
    CDRomTarget,
    CPUFeature,
    Devices,
    Disk,
    DiskTarget,
    Domain,
    DomainResources,
    Efi,
    Firmware,
    Hugepages,
    Interface,
    KernelBoot,
    KernelBootContainer,
    LunTarget,
    Machine,
    Memory,
    Port,
)
from hotvirt.api.meta import Kind, ObjectMeta, Struct
from hotvirt.api.quantity import Quantity
from hotvirt.api.volumes import (
    ClaimVolume,
    CloudInitNoCloud,
    ContainerDisk,
    DataVolumeVolume,
    EmptyDisk,
    HostDisk,
    MultusNetwork,
    Network,
    PodNetwork,
    SecretReference,
    Volume,
)

__all__ = [
    "CPU",
    "Bios",
    "Bootloader",
    "CDRomTarget",
    "CPUFeature",
    "CPUTopology",
    "ClaimInfo",
    "ClaimVolume",
    "CloudInitNoCloud",
    "ContainerDisk",
    "DataVolumeTemplate",
    "DataVolumeVolume",
    "DeveloperConfiguration",
    "Devices",
    "Disk",
    "DiskTarget",
    "Domain",
    "DomainResources",
    "Efi",
    "EmptyDisk",
    "Firmware",
    "GuestOSInfo",
    "GuestSize",
    "HostDisk",
    "HotvirtMemory",
    "HotvirtRequest",
    "HotvirtStatus",
    "Hugepages",
    "Interface",
    "KernelBoot",
    "KernelBootContainer",
    "KubeVirt",
    "KubeVirtConfiguration",
    "KubeVirtSpec",
    "KubeVirtStatus",
    "LiveUpdateConfiguration",
    "LunTarget",
    "Machine",
    "Matcher",
    "Memory",
    "MemoryStatus",
    "MigrationSpec",
    "MigrationState",
    "MigrationStatus",
    "MultusNetwork",
    "Network",
    "NetworkInterfaceStatus",
    "PhaseTransition",
    "PodNetwork",
    "Port",
    "SecretReference",
    "SizeChange",
    "StartFailure",
    "StateChangeRequest",
    "VCPUs",
    "VMISpec",
    "VMIStatus",
    "VMITemplate",
    "VMSpec",
    "VMStatus",
    "VirtualMachine",
    "VirtualMachineInstance",
    "VirtualMachineInstanceMigration",
    "Volume",
    "VolumeStatus",
    "WorkloadUpdateStrategy",
]


class VMISpec(Struct, frozen=True):
    """What one running machine should be; also ``spec.template.spec`` of a VM."""

    domain: Domain = Domain()
    volumes: tuple[Volume, ...] = ()
    networks: tuple[Network, ...] = ()
    termination_grace_period_seconds: int | None = None
    hostname: str = ""
    subdomain: str = ""
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: dict[str, Any] | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    scheduler_name: str = ""
    priority_class_name: str = ""
    start_strategy: str | None = None
    architecture: str = ""


class VMITemplate(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: VMISpec = VMISpec()


class Matcher(Struct, frozen=True):
    """The instance type or preference that a VM names."""

    name: str = ""
    kind: str = ""
    revision_name: str = ""
    infer_from_volume: str = ""
    infer_from_volume_failure_policy: str | None = None


class VMSpec(Struct, frozen=True):
    run_strategy: str | None = None
    running: bool | None = None
    template: VMITemplate = VMITemplate()
    data_volume_templates: tuple[DataVolumeTemplate, ...] = ()
    instancetype: Matcher | None = None
    preference: Matcher | None = None
    update_volumes_strategy: str | None = None


class StateChangeRequest(Struct, frozen=True):
    """One start or stop that a user asked for and that has not been carried out yet."""

    action: str = ""
    uid: str | None = None
    data: dict[str, str] = field(default_factory=dict)


class StartFailure(Struct, frozen=True):
    consecutive_fail_count: int = 0
    last_failed_vmi_uid: str = field(default="", name="lastFailedVMIUID")
    retry_after_timestamp: str | None = None


class VMStatus(Struct, frozen=True):
    printable_status: str = ""
    ready: bool = False
    created: bool = False
    run_strategy: str = ""
    observed_generation: int = 0
    desired_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    state_change_requests: tuple[StateChangeRequest, ...] = ()
    start_failure: StartFailure | None = None
    instancetype_ref: dict[str, Any] | None = None
    preference_ref: dict[str, Any] | None = None


class VirtualMachine(Kind, frozen=True):
    api_version: str = "kubevirt.io/v1"
    kind: str = "VirtualMachine"
    spec: VMSpec = VMSpec()
    status: VMStatus = VMStatus()


class PhaseTransition(Struct, frozen=True):
    phase: str = ""
    phase_transition_timestamp: str | None = None


class CPUTopology(Struct, frozen=True):
    sockets: int = 0
    cores: int = 0
    threads: int = 0


class MemoryStatus(Struct, frozen=True):
    guest_at_boot: Quantity | None = None
    guest_requested: Quantity | None = None
    guest_current: Quantity | None = None
    memory_overhead: Quantity | None = None


class NetworkInterfaceStatus(Struct, frozen=True):
    name: str = ""
    ip_address: str = ""
    ip_addresses: tuple[str, ...] = ()
    mac: str = ""
    interface_name: str = ""
    info_source: str = ""
    pod_interface_name: str = ""
    link_state: str = ""
    queue_count: int = 0


class GuestOSInfo(Struct, frozen=True):
    name: str = ""
    id: str = ""
    version: str = ""
    version_id: str = ""
    pretty_name: str = ""
    kernel_release: str = ""
    kernel_version: str = ""
    machine: str = ""


class ClaimInfo(Struct, frozen=True):
    claim_name: str = ""
    access_modes: tuple[str, ...] = ()
    volume_mode: str | None = None
    capacity: dict[str, Quantity] = field(default_factory=dict)
    requests: dict[str, Quantity] = field(default_factory=dict)


class VolumeStatus(Struct, frozen=True):
    name: str = ""
    target: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    size: int = 0
    persistent_volume_claim_info: ClaimInfo | None = None
    hotplug_volume: dict[str, Any] | None = None


class MigrationState(Struct, frozen=True):
    start_timestamp: str | None = None
    end_timestamp: str | None = None
    source_node: str = ""
    target_node: str = ""
    source_pod: str = ""
    target_pod: str = ""
    migration_uid: str = ""
    completed: bool = False
    failed: bool = False
    abort_requested: bool = False
    failure_reason: str = ""
    mode: str = ""


class HotvirtRequest(Struct, frozen=True):
    """A wish for the node agent: Pause, Unpause, SoftReboot or Reset."""

    action: str = ""
    id: str = ""
    requested_at: str | None = None


class VCPUs(Struct, frozen=True):
    """vCPUs: plugged by the hypervisor, and online as the guest itself sees it."""

    plugged: int = 0
    online: int = 0


class SizeChange(Struct, frozen=True):
    """A change of size that is under way: the size it began from, and when (with microseconds)."""

    sockets: int = 0
    guest: Quantity | None = None
    started_at: str | None = None


class GuestSize(Struct, frozen=True):
    """A size of the guest: vCPUs, and memory without the hypervisor's own."""

    vcpus: int = 0
    memory: Quantity | None = None


class HotvirtMemory(Struct, frozen=True):
    """Bytes: at boot, asked of the hypervisor, plugged by it, and online as the guest itself sees it.

    The last three count the memory at boot too.
    """

    boot: int = 0
    requested: int = 0
    plugged: int = 0
    online: int = 0


class Obstacle(Struct, frozen=True):
    """Why the guest does not have what it was asked to take or give back (node agent)."""

    resource: str = ""
    reason: str = ""
    message: str = ""


class HotvirtStatus(Struct, frozen=True):
    """What Hotvirt says beyond KubeVirt's fields.

    `granted` is what the Pod covers and will go on covering (VMI controller), `claimed` what the hypervisor
    has or may have been told to have (raised with the grant, lowered by the node agent). Claimed never
    exceeds granted.
    """

    requests: tuple[HotvirtRequest, ...] = ()
    granted: GuestSize | None = None
    claimed: GuestSize | None = None
    vcpus: VCPUs | None = None
    memory: HotvirtMemory | None = None
    boot_id: str = ""
    accelerator: str = ""
    hypervisor: str = ""
    guest_mem_total: Quantity | None = None
    change: SizeChange | None = None
    obstacles: tuple[Obstacle, ...] = ()
    settled_generation: int = 0


class VMIStatus(Struct, frozen=True):
    phase: str = ""
    reason: str = ""
    phase_transition_timestamps: tuple[PhaseTransition, ...] = ()
    node_name: str = ""
    conditions: tuple[Condition, ...] = ()
    interfaces: tuple[NetworkInterfaceStatus, ...] = ()
    guest_os_info: GuestOSInfo = field(default=GuestOSInfo(), name="guestOSInfo")
    current_cpu_topology: CPUTopology | None = field(default=None, name="currentCPUTopology")
    memory: MemoryStatus | None = None
    volume_status: tuple[VolumeStatus, ...] = ()
    active_pods: dict[str, str] = field(default_factory=dict)
    qos_class: str | None = None
    migration_state: MigrationState | None = None
    virtual_machine_revision_name: str = ""
    machine: Machine | None = None
    launcher_container_image_version: str = ""
    runtime_user: int = 0
    hotvirt: HotvirtStatus = HotvirtStatus()


class VirtualMachineInstance(Kind, frozen=True):
    api_version: str = "kubevirt.io/v1"
    kind: str = "VirtualMachineInstance"
    spec: VMISpec = VMISpec()
    status: VMIStatus = VMIStatus()


class MigrationSpec(Struct, frozen=True):
    vmi_name: str = ""
    added_node_selector: dict[str, str] = field(default_factory=dict)
    priority: str | None = None


class MigrationStatus(Struct, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    phase_transition_timestamps: tuple[PhaseTransition, ...] = ()
    migration_state: MigrationState | None = None


class VirtualMachineInstanceMigration(Kind, frozen=True):
    api_version: str = "kubevirt.io/v1"
    kind: str = "VirtualMachineInstanceMigration"
    spec: MigrationSpec = MigrationSpec()
    status: MigrationStatus = MigrationStatus()
