"""What is refused of DataVolumes: Hotvirt makes blank disks; it copies and imports nothing yet."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hotvirt.api import codec
from hotvirt.api.cdi import DataVolume, DataVolumeSpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.causes import Cause, Causes, type_error

ACCESS_MODES: Final = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_INSTEAD: Final = (
    "Hotvirt makes blank disks (blank: {}); for a disk with content use a containerDisk, "
    "or write into the claim yourself"
)
_COPIES: Final = {"pvc": "clone", "snapshot": "clone", "upload": "take uploads"}


def validate_data_volume(data_volume: dict[str, Any]) -> list[Cause]:
    """Every cause why this DataVolume cannot be made; none when it can."""
    try:
        typed = codec.convert(data_volume, DataVolume)
    except msgspec.ValidationError as error:
        return [type_error(error)]
    causes = Causes()
    check_data_volume_spec(causes, codec.without_nulls(data_volume.get("spec") or {}), typed.spec, "spec")
    return causes.found


def check_data_volume_spec(causes: Causes, raw: dict[str, Any], spec: DataVolumeSpec, path: str) -> None:
    """`raw` is the spec as it was written, without nulls."""
    _check_source(causes, raw, path)
    causes.one_of(f"{path}.contentType", spec.content_type, ("kubevirt",))
    if spec.pvc is not None and spec.storage is not None:
        causes.forbidden(path, "pvc and storage exclude each other: set one")
    claim = spec.claim
    if claim is None:
        causes.required(
            f"{path}.storage", "say how large the disk is, under storage.resources.requests.storage"
        )
        return
    here = f"{path}.pvc" if spec.pvc is not None else f"{path}.storage"
    size = claim.resources.requests.get("storage") if claim.resources else None
    if size is None:
        causes.required(f"{here}.resources.requests.storage", "say how large the disk is, like 10Gi")
    elif size <= Quantity(0):
        causes.invalid(f"{here}.resources.requests.storage", f"{size} is not a size, write one like 10Gi")
    for index, mode in enumerate(claim.access_modes):
        causes.one_of(f"{here}.accessModes[{index}]", mode, ACCESS_MODES)
    causes.one_of(f"{here}.volumeMode", claim.volume_mode, ("Filesystem", "Block"))
    if spec.pvc is not None and not spec.pvc.access_modes:
        causes.required(f"{here}.accessModes", "a claim needs an access mode, like ReadWriteOnce")


def _check_source(causes: Causes, raw: dict[str, Any], path: str) -> None:
    source = raw.get("source") or {}
    if "sourceRef" in raw:
        causes.unsupported(f"{path}.sourceRef", f"Hotvirt does not clone: {_INSTEAD}")
    elif not source:
        causes.required(f"{path}.source", "say what the disk is filled with: blank: {}")
    elif len(source) > 1:
        causes.forbidden(f"{path}.source", f"there are {len(source)} sources ({', '.join(source)}): set one")
    for name in source:
        if name != "blank":
            causes.unsupported(
                f"{path}.source.{name}", f"Hotvirt does not {_COPIES.get(name, 'import')}: {_INSTEAD}"
            )
