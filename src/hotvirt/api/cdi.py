"""``cdi.kubevirt.io/v1beta1``: a disk that is made for a VM."""

from __future__ import annotations

from typing import Any

from msgspec import field

from hotvirt.api.conditions import Condition
from hotvirt.api.core import ClaimSpec, ResourceRequirements
from hotvirt.api.meta import Empty, Kind, Struct


class DataVolumeSource(Struct, frozen=True):
    """Where the content comes from. Hotvirt makes blank disks; the other ways are kept but refused."""

    blank: Empty | None = None
    http: dict[str, Any] | None = None
    s3: dict[str, Any] | None = None
    gcs: dict[str, Any] | None = None
    registry: dict[str, Any] | None = None
    pvc: dict[str, Any] | None = None
    upload: dict[str, Any] | None = None
    snapshot: dict[str, Any] | None = None
    imageio: dict[str, Any] | None = None
    vddk: dict[str, Any] | None = None


class StorageSpec(Struct, frozen=True):
    """The claim, with what is left out filled in from the storage class."""

    access_modes: tuple[str, ...] = ()
    volume_mode: str | None = None
    resources: ResourceRequirements | None = None
    storage_class_name: str | None = None
    volume_name: str = ""
    selector: dict[str, Any] | None = None
    data_source: dict[str, Any] | None = None
    data_source_ref: dict[str, Any] | None = None


class DataVolumeSpec(Struct, frozen=True):
    source: DataVolumeSource | None = None
    source_ref: dict[str, Any] | None = None
    pvc: ClaimSpec | None = None
    storage: StorageSpec | None = None
    content_type: str = ""
    preallocation: bool | None = None
    priority_class_name: str = ""

    @property
    def claim(self) -> ClaimSpec | StorageSpec | None:
        """The wanted claim, whichever of the two ways it is written."""
        return self.pvc or self.storage


class DataVolumeStatus(Struct, frozen=True):
    phase: str = ""
    progress: str = ""
    claim_name: str = ""
    restart_count: int = 0
    conditions: tuple[Condition, ...] = ()


class DataVolume(Kind, frozen=True):
    api_version: str = "cdi.kubevirt.io/v1beta1"
    kind: str = "DataVolume"
    spec: DataVolumeSpec = DataVolumeSpec()
    status: DataVolumeStatus = DataVolumeStatus()


class DataVolumeTemplate(Struct, frozen=True):
    """A DataVolume that a VM makes and owns (``spec.dataVolumeTemplates``)."""

    metadata: dict[str, Any] = field(default_factory=dict)
    spec: DataVolumeSpec = DataVolumeSpec()
