"""The rules of storage: claims, volumes and classes."""

from __future__ import annotations

from typing import Final

import msgspec

from hotvirt.api.quantity import Quantity

from .call import Call
from .errors import (
    FieldError,
    forbidden,
    forbidden_value,
    invalid_value,
    not_supported,
    required_value,
)
from .limits import check_claim_limits
from .objects import Object
from .store import Store
from .strategies import Strategy
from .types import struct

CLASSES: Final = "storageclasses.storage.k8s.io"
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"


class ClaimStrategy(Strategy):
    returns_deleted = True

    def __init__(self, store: Store) -> None:
        self._store = store

    def prepare_create(self, call: Call, obj: Object) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("volumeMode", "Filesystem")
        if "storageClassName" not in spec and not spec.get("volumeName"):
            default = self._default_class()
            if default:
                spec["storageClassName"] = default
        obj["status"] = {"phase": "Pending"}
        _protect(obj, "kubernetes.io/pvc-protection")

    def _default_class(self) -> str:
        found = [
            obj["metadata"]["name"]
            for entry in self._store.entries(CLASSES)
            if (obj := msgspec.json.decode(entry.data))["metadata"].get("annotations", {}).get(DEFAULT_CLASS)
            == "true"
        ]
        return found[-1] if found else ""

    async def admit_create(self, call: Call, obj: Object) -> None:
        check_claim_limits(self._store, obj)

    async def admit_update(self, call: Call, old: Object, new: Object) -> None:
        if call.subresource == "status" or _storage(new) <= _storage(old):
            return
        check_claim_limits(self._store, new)
        entry = self._store.get(
            ("storageclasses.storage.k8s.io", "", new["spec"].get("storageClassName", ""))
        )
        if entry is None or not msgspec.json.decode(entry.data).get("allowVolumeExpansion"):
            why = (
                "only dynamically provisioned pvc can be resized and the storageclass "
                "that provisions the pvc must support resize"
            )
            raise forbidden("", "persistentvolumeclaims", call.name, why)

    def validate_create(self, obj: Object) -> list[FieldError]:
        spec, errors = obj.get("spec") or {}, []
        if not spec.get("accessModes"):
            errors.append(required_value("spec.accessModes", "at least 1 access mode is required"))
        known = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"]
        errors += [
            not_supported("spec.accessModes", mode, known)
            for mode in spec.get("accessModes") or []
            if mode not in known
        ]
        if spec.get("volumeMode") not in ("Block", "Filesystem"):
            errors.append(not_supported("spec.volumeMode", spec.get("volumeMode"), ["Block", "Filesystem"]))
        size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
        if size is None:
            errors.append(required_value("spec.resources[storage]"))
        elif Quantity(str(size)) <= Quantity(0):
            errors.append(invalid_value("spec.resources[storage]", str(size), "must be greater than zero"))
        return errors

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        new.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        if call.subresource == "status":
            return []
        before, after = dict(old["spec"]), dict(new["spec"])
        if (old.get("status") or {}).get("phase") == "Bound":
            for spec in (before, after):
                spec.pop("resources", None)
                spec.pop("volumeAttributesClassName", None)
        if not before.get("volumeName"):
            after.pop("volumeName", None)
        if "storageClassName" not in before:
            after.pop("storageClassName", None)
        errors = self.validate_create(new)
        if before != after:
            errors.append(
                forbidden_value(
                    "spec",
                    "spec is immutable after creation except resources.requests and "
                    "volumeAttributesClassName for bound claims",
                )
            )
        if _storage(new) < _storage(old):
            errors.append(
                forbidden_value(
                    "spec.resources.requests.storage", "field can not be less than status.capacity"
                )
            )
        return errors


def _storage(claim: Object) -> Quantity:
    requests = (claim["spec"].get("resources") or {}).get("requests") or {}
    return Quantity(str(requests.get("storage", "0")))


def _protect(obj: Object, finalizer: str) -> None:
    """Storage that is in use does not go away: the storage controller takes the finalizer off again."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if finalizer not in finalizers:
        finalizers.append(finalizer)


_VOLUME_SOURCES: Final = struct("core.PersistentVolumeSource").fields.keys()


class VolumeStrategy(Strategy):
    returns_deleted = True

    def prepare_create(self, call: Call, obj: Object) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
        spec.setdefault("volumeMode", "Filesystem")
        obj["status"] = {"phase": "Pending"}
        _protect(obj, "kubernetes.io/pv-protection")

    def validate_create(self, obj: Object) -> list[FieldError]:
        spec, errors = obj.get("spec") or {}, []
        if not spec.get("accessModes"):
            errors.append(required_value("spec.accessModes"))
        if not spec.get("capacity"):
            errors.append(required_value("spec.capacity"))
        sources = [name for name in spec if name in _VOLUME_SOURCES]
        if not sources:
            errors.append(required_value("spec", "must specify a volume type"))
        errors += [
            forbidden_value(f"spec.{name}", "may not specify more than 1 volume type") for name in sources[1:]
        ]
        return errors


class StorageClassStrategy(Strategy):
    returns_deleted = True

    def prepare_create(self, call: Call, obj: Object) -> None:
        obj.setdefault("reclaimPolicy", "Delete")
        obj.setdefault("volumeBindingMode", "Immediate")

    def validate_create(self, obj: Object) -> list[FieldError]:
        return [] if obj.get("provisioner") else [required_value("provisioner")]

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        errors = self.validate_create(new)
        if (old.get("parameters") or {}) != (new.get("parameters") or {}):
            errors.append(forbidden_value("parameters", "updates to parameters are forbidden."))
        for field in ("provisioner", "reclaimPolicy", "volumeBindingMode"):
            if old.get(field) != new.get(field):
                errors.append(invalid_value(field, new.get(field), "field is immutable"))
        return errors
