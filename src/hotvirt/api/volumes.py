"""What a machine's disks and cards are connected to: ``spec.volumes`` and ``spec.networks`` of a VMI."""

from __future__ import annotations

from typing import Any

from msgspec import field

from hotvirt.api.meta import Struct
from hotvirt.api.quantity import Quantity


class SecretReference(Struct, frozen=True):
    name: str = ""


class ContainerDisk(Struct, frozen=True):
    image: str = ""
    image_pull_secret: str = ""
    image_pull_policy: str = ""
    path: str = ""


class ClaimVolume(Struct, frozen=True):
    claim_name: str = ""
    read_only: bool = False
    hotpluggable: bool = False


class DataVolumeVolume(Struct, frozen=True):
    name: str = ""
    hotpluggable: bool = False


class CloudInitNoCloud(Struct, frozen=True):
    user_data: str = ""
    user_data_base64: str = field(default="", name="userDataBase64")
    user_data_secret_ref: SecretReference | None = field(default=None, name="secretRef")
    network_data: str = ""
    network_data_base64: str = field(default="", name="networkDataBase64")
    network_data_secret_ref: SecretReference | None = None


class EmptyDisk(Struct, frozen=True):
    capacity: Quantity = Quantity(0)


class HostDisk(Struct, frozen=True):
    path: str = ""
    type: str = ""
    capacity: Quantity | None = None
    shared: bool | None = None


class Volume(Struct, frozen=True):
    """One volume: exactly one source is set."""

    name: str = ""
    container_disk: ContainerDisk | None = None
    persistent_volume_claim: ClaimVolume | None = None
    data_volume: DataVolumeVolume | None = None
    cloud_init_no_cloud: CloudInitNoCloud | None = None
    empty_disk: EmptyDisk | None = None
    host_disk: HostDisk | None = None
    cloud_init_config_drive: dict[str, Any] | None = None
    config_map: dict[str, Any] | None = None
    secret: dict[str, Any] | None = None
    service_account: dict[str, Any] | None = None
    downward_api: dict[str, Any] | None = field(default=None, name="downwardAPI")
    downward_metrics: dict[str, Any] | None = None
    ephemeral: dict[str, Any] | None = None
    sysprep: dict[str, Any] | None = None
    memory_dump: dict[str, Any] | None = None

    @property
    def claim_name(self) -> str:
        """The claim behind this volume; a DataVolume's claim has its name. Empty when there is none."""
        if self.persistent_volume_claim:
            return self.persistent_volume_claim.claim_name
        return self.data_volume.name if self.data_volume else ""


class PodNetwork(Struct, frozen=True):
    """The Pod's network."""


class MultusNetwork(Struct, frozen=True):
    network_name: str = ""
    default: bool = False


class Network(Struct, frozen=True):
    name: str = ""
    pod: PodNetwork | None = None
    multus: MultusNetwork | None = None
