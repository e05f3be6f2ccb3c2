"""The rules of the other built-in kinds."""

from __future__ import annotations

import base64
import re
from typing import Any, Final

from .call import Call
from .errors import (
    FieldError,
    forbidden,
    forbidden_value,
    invalid_value,
    not_supported,
    required_value,
)
from .pods import PodStrategy
from .quota import QuotaGate
from .storage_kinds import ClaimStrategy, StorageClassStrategy, VolumeStrategy
from .store import Store
from .strategies import Strategy

Object = dict[str, Any]
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+\Z")
_KEY_RULE: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
    "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
RBAC: Final = "rbac.authorization.k8s.io"
RBAC_KINDS: Final = ("clusterrolebindings", "clusterroles", "rolebindings", "roles")
LIMIT_TYPES: Final = ("Container", "PersistentVolumeClaim", "Pod")
PERMANENT: Final = ("default", "kube-system", "kube-public")
MAX_DATA: Final = 1024 * 1024


class NamespaceStrategy(Strategy):
    returns_deleted = True
    has_grace = False

    def prepare_create(self, call: Call, obj: Object) -> None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get(
            "name", ""
        )

    def own_part(self, call: Call, old: Object, new: Object) -> Object | None:
        if call.subresource != "finalize":
            return None
        return old | {"metadata": dict(old["metadata"]), "spec": new.get("spec") or {}}

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        if call.subresource != "finalize":
            new["spec"] = dict(old.get("spec") or {})
        new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = old["metadata"]["name"]

    def check_delete(self, obj: Object) -> None:
        name = obj["metadata"]["name"]
        if name in PERMANENT:
            raise forbidden("", "namespaces", name, "this namespace may not be deleted")

    def prepare_delete(self, obj: Object) -> None:
        obj["status"] = (obj.get("status") or {}) | {"phase": "Terminating"}


def _data_errors(obj: Object, *fields: str) -> list[FieldError]:
    errors, size = [], 0
    for field in fields:
        for key, value in (obj.get(field) or {}).items():
            size += len(value.encode())
            if not _KEY.match(key) or key in (".", ".."):
                errors.append(invalid_value(f"{field}[{key}]", key, _KEY_RULE))
    if size > MAX_DATA:
        errors.append(FieldError("", "FieldValueTooLong", f"Too long: may not be more than {MAX_DATA} bytes"))
    return errors


def _immutable_data_errors(old: Object, new: Object, *fields: str) -> list[FieldError]:
    if not old.get("immutable"):
        return []
    errors = []
    if not new.get("immutable"):
        errors.append(forbidden_value("immutable", "field is immutable when `immutable` is set"))
    errors += [
        forbidden_value(field, "field is immutable when `immutable` is set")
        for field in fields
        if (old.get(field) or {}) != (new.get(field) or {})
    ]
    return errors


class ConfigMapStrategy(Strategy):
    def validate_create(self, obj: Object) -> list[FieldError]:
        errors = _data_errors(obj, "data", "binaryData")
        for key in (obj.get("data") or {}).keys() & (obj.get("binaryData") or {}).keys():
            errors.append(invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData"))
        return errors

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        return self.validate_create(new) + _immutable_data_errors(old, new, "data", "binaryData")


class SecretStrategy(Strategy):
    def prepare_create(self, call: Call, obj: Object) -> None:
        obj.setdefault("type", "Opaque")
        _encode_string_data(obj)

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        new.setdefault("type", old.get("type", "Opaque"))
        _encode_string_data(new)

    def validate_create(self, obj: Object) -> list[FieldError]:
        return _data_errors(obj, "data")

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        errors = self.validate_create(new) + _immutable_data_errors(old, new, "data")
        if old.get("type") != new.get("type"):
            errors.append(invalid_value("type", new.get("type"), "field is immutable"))
        return errors


def _encode_string_data(obj: Object) -> None:
    plain = obj.pop("stringData", None) or {}
    for key, value in plain.items():
        obj.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()


class NodeStrategy(Strategy):
    keeps_status = True

    def prepare_create(self, call: Call, obj: Object) -> None:
        obj.setdefault("spec", {})
        _default_allocatable(obj)

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        _default_allocatable(new)


def _default_allocatable(node: Object) -> None:
    status = node.get("status") or {}
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


class CreatedByUpdate(Strategy):
    create_on_update = True


class ServiceStrategy(CreatedByUpdate):
    """Services are kept, so that manifests with one apply; nothing routes to them here."""

    returns_deleted = True

    def prepare_create(self, call: Call, obj: Object) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        if spec["type"] != "ExternalName":
            spec.setdefault("internalTrafficPolicy", "Cluster")
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))
        obj["status"] = {"loadBalancer": {}}

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        status = new.get("status")
        self.prepare_create(call, new)
        new["status"] = status or {"loadBalancer": {}}

    def validate_create(self, obj: Object) -> list[FieldError]:
        spec, errors = obj["spec"], []
        types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]
        if spec["type"] not in types:
            errors.append(not_supported("spec.type", spec["type"], types))
        if not spec.get("ports") and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
            errors.append(required_value("spec.ports"))
        for index, port in enumerate(spec.get("ports") or []):
            if not 0 < (port.get("port") or 0) < 65536:
                errors.append(
                    invalid_value(
                        f"spec.ports[{index}].port",
                        port.get("port") or 0,
                        "must be between 1 and 65535, inclusive",
                    )
                )
        return errors


class QuotaStrategy(Strategy):
    returns_deleted = True

    def prepare_create(self, call: Call, obj: Object) -> None:
        obj.setdefault("spec", {})
        obj["status"] = {}


class LimitRangeStrategy(Strategy):
    create_on_update = True

    def prepare_create(self, call: Call, obj: Object) -> None:
        for limit in (obj.get("spec") or {}).get("limits") or []:
            if limit.get("type") != "Container":
                continue
            for target, source in (
                ("default", "max"),
                ("defaultRequest", "default"),
                ("defaultRequest", "min"),
            ):
                for name, amount in (limit.get(source) or {}).items():
                    limit.setdefault(target, {}).setdefault(name, amount)

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        self.prepare_create(call, new)

    def validate_create(self, obj: Object) -> list[FieldError]:
        why = "must be a standard limit type or fully qualified"
        return [
            invalid_value(f"spec.limits[{index}].type", limit.get("type", ""), why)
            for index, limit in enumerate((obj.get("spec") or {}).get("limits") or [])
            if limit.get("type") not in LIMIT_TYPES and "/" not in limit.get("type", "")
        ]

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        return self.validate_create(new)


class AccountStrategy(Strategy):
    returns_deleted = True


class EventStrategy(Strategy):
    create_on_update = True

    def validate_create(self, obj: Object) -> list[FieldError]:
        about = obj.get("involvedObject") or obj.get("regarding") or {}
        field = "involvedObject" if "involvedObject" in obj else "regarding"
        expected = about.get("namespace") or "default"
        actual = obj["metadata"].get("namespace", "")
        if expected != actual and (about.get("namespace") or actual not in ("", "default", "kube-system")):
            return [
                invalid_value(
                    f"{field}.namespace", about.get("namespace", ""), "does not match event.namespace"
                )
            ]
        return []


class VersionedStrategy(Strategy):
    """Kinds that may only be updated with the resourceVersion that was read."""

    unconditional_update = False


class LeaseStrategy(VersionedStrategy):
    create_on_update = True

    def validate_create(self, obj: Object) -> list[FieldError]:
        spec = obj.get("spec") or {}
        errors = []
        if spec.get("leaseDurationSeconds", 1) <= 0:
            value = spec["leaseDurationSeconds"]
            errors.append(invalid_value("spec.leaseDurationSeconds", value, "must be greater than 0"))
        if spec.get("leaseTransitions", 0) < 0:
            value = spec["leaseTransitions"]
            errors.append(invalid_value("spec.leaseTransitions", value, "must be greater than or equal to 0"))
        return errors

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        return self.validate_create(new)


class BudgetStrategy(VersionedStrategy):
    def prepare_create(self, call: Call, obj: Object) -> None:
        obj.setdefault("spec", {})
        obj["status"] = {
            "disruptionsAllowed": 0,
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "expectedPods": 0,
        }

    def validate_create(self, obj: Object) -> list[FieldError]:
        spec = obj.get("spec") or {}
        if "minAvailable" in spec and "maxUnavailable" in spec:
            return [invalid_value("spec", spec, "minAvailable and maxUnavailable cannot be both set")]
        return []


class PriorityStrategy(Strategy):
    def prepare_create(self, call: Call, obj: Object) -> None:
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
        obj.setdefault("value", 0)

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        return [
            forbidden_value(field, "may not be changed in an update.")
            for field in ("value", "preemptionPolicy")
            if old.get(field) != new.get(field)
        ]

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        self.prepare_create(call, new)


class RevisionStrategy(Strategy):
    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        if old.get("data") != new.get("data"):
            return [invalid_value("data", new.get("data"), "field is immutable")]
        return []


def builtin_strategies(store: Store, quota: QuotaGate) -> dict[str, Strategy]:
    return {
        "configmaps": ConfigMapStrategy(),
        "controllerrevisions.apps": RevisionStrategy(),
        "events": EventStrategy(),
        "leases.coordination.k8s.io": LeaseStrategy(),
        "limitranges": LimitRangeStrategy(),
        "namespaces": NamespaceStrategy(),
        "nodes": NodeStrategy(),
        "persistentvolumeclaims": ClaimStrategy(store),
        "persistentvolumes": VolumeStrategy(),
        "poddisruptionbudgets.policy": BudgetStrategy(),
        "pods": PodStrategy(store, quota),
        "priorityclasses.scheduling.k8s.io": PriorityStrategy(),
        "resourcequotas": QuotaStrategy(),
        "secrets": SecretStrategy(),
        "serviceaccounts": AccountStrategy(),
        **{f"{name}.{RBAC}": CreatedByUpdate() for name in RBAC_KINDS},
        "services": ServiceStrategy(),
        "storageclasses.storage.k8s.io": StorageClassStrategy(),
    }
