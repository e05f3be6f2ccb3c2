"""CustomResourceDefinitions: checked when they are written, served from the moment they are stored."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hotvirt.api.meta import now

from .call import Call
from .crd_schema import schema_errors
from .discovery import version_order
from .errors import FieldError, forbidden_value, invalid_value, not_supported, required_value
from .kinds import STATUS, Kind, Registry, Scale, Subresource
from .schema import compile_schema
from .store import DELETED, Change, Entry
from .strategies import Strategy

RESOURCE: Final = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"
Object = dict[str, Any]


class CrdStrategy(Strategy):
    unconditional_update = False
    has_grace = False

    def __init__(self, crds: Crds) -> None:
        self._crds = crds

    def prepare_create(self, call: Call, obj: Object) -> None:
        _fill(obj)
        obj["status"] = self._crds.status_of(obj, {})
        _warn_of_rules(call, obj)

    def validate_create(self, obj: Object) -> list[FieldError]:
        return _errors(obj)

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        _fill(new)
        if old["spec"] != new["spec"]:
            _warn_of_rules(call, new)
        if call.subresource != "status":
            new["status"] = self._crds.status_of(new, old.get("status") or {})

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        errors = _errors(new)
        for field in ("group", "scope"):
            if old["spec"].get(field) != new["spec"].get(field):
                errors.append(invalid_value(f"spec.{field}", new["spec"].get(field), "field is immutable"))
        for field in ("plural", "kind"):
            if old["spec"]["names"].get(field) != new["spec"]["names"].get(field):
                value = new["spec"]["names"].get(field)
                errors.append(invalid_value(f"spec.names.{field}", value, "field is immutable"))
        names = {version.get("name") for version in new["spec"].get("versions") or []}
        for index, stored in enumerate((new.get("status") or {}).get("storedVersions") or []):
            if stored not in names:
                errors.append(
                    invalid_value(
                        f"status.storedVersions[{index}]",
                        stored,
                        "missing from spec.versions; "
                        f"{stored} was previously a storage version, and must remain in "
                        "spec.versions until a storage "
                        "migration ensures no data remains persisted in it and removes it from "
                        "status.storedVersions",
                    )
                )
        return errors

    def before_delete(self, obj: Object) -> None:
        finalizers = obj["metadata"].setdefault("finalizers", [])
        if not obj["metadata"].get("deletionTimestamp") and CLEANUP not in finalizers:
            finalizers.append(CLEANUP)
        if not finalizers:
            del obj["metadata"]["finalizers"]

    def prepare_delete(self, obj: Object) -> None:
        status = obj.setdefault("status", {})
        status["conditions"] = [
            one for one in status.get("conditions") or [] if one.get("type") != "Terminating"
        ] + [
            _condition(
                "Terminating",
                "True",
                "InstanceDeletionPending",
                "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
            )
        ]


def _fill(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind") or ""
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def _warn_of_rules(call: Call, obj: Object) -> None:
    if b'"x-kubernetes-validations"' in msgspec.json.encode(obj["spec"].get("versions")):
        call.warn("the embedded API keeps x-kubernetes-validations but does not evaluate them: it has no CEL")


def _errors(obj: Object) -> list[FieldError]:
    spec, errors = obj["spec"], []
    group, names = spec.get("group") or "", spec.get("names") or {}
    expected = f"{names.get('plural') or ''}.{group}"
    if obj["metadata"].get("name") != expected:
        errors.append(
            invalid_value(
                "metadata.name", obj["metadata"].get("name"), 'must be spec.names.plural+"."+spec.group'
            )
        )
    if not group:
        errors.append(required_value("spec.group"))
    elif "." not in group:
        errors.append(invalid_value("spec.group", group, "should be a domain with at least one dot"))
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        errors.append(not_supported("spec.scope", spec.get("scope", ""), ["Cluster", "Namespaced"]))
    for field in ("plural", "kind"):
        if not names.get(field):
            errors.append(required_value(f"spec.names.{field}"))
    versions = spec.get("versions") or []
    if sum(bool(one.get("storage")) for one in versions) != 1:
        errors.append(
            invalid_value(
                "spec.versions", versions, "must have exactly one version marked as storage version"
            )
        )
    if (spec.get("conversion") or {}).get("strategy") not in (None, "None"):
        errors.append(
            forbidden_value(
                "spec.conversion.strategy",
                "the embedded API has no conversion webhooks; use the strategy None",
            )
        )
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        # As kube-apiserver: the schema of an only version is named by its place before there were versions.
        where = f"{path}.schema" if len(versions) > 1 else "spec.validation"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            errors.append(required_value(f"{path}.schema.openAPIV3Schema", "schemas are required"))
        else:
            errors += schema_errors(schema, f"{where}.openAPIV3Schema")
    return errors


def _condition(
    type_: str, status: str, reason: str, message: str, before: list[Object] | None = None
) -> Object:
    moment = now()
    for one in before or []:
        if one.get("type") == type_ and one.get("status") == status:
            moment = one.get("lastTransitionTime") or moment
    return {
        "type": type_,
        "status": status,
        "lastTransitionTime": moment,
        "reason": reason,
        "message": message,
    }


class Crds:
    """Keeps the registry in step with the stored CRDs."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._served: dict[str, list[Kind]] = {}
        self.on_gone: list[Any] = []

    def status_of(self, obj: Object, before: Object) -> Object:
        spec = obj["spec"]
        conditions = before.get("conditions") or []
        conflict = self._names_conflict(obj)
        if conflict is None:
            made = [
                _condition("NamesAccepted", "True", "NoConflicts", "no conflicts found", conditions),
                _condition(
                    "Established",
                    "True",
                    "InitialNamesAccepted",
                    "the initial names have been accepted",
                    conditions,
                ),
            ]
            accepted = spec.get("names") or {}
        else:
            reason, message = conflict
            made = [
                _condition("NamesAccepted", "False", reason, message, conditions),
                _condition("Established", "False", "NotAccepted", "not all names are accepted", conditions),
            ]
            accepted = before.get("acceptedNames") or {"plural": "", "kind": ""}
        kept = [one for one in conditions if one.get("type") not in ("NamesAccepted", "Established")]
        stored = list(before.get("storedVersions") or [])
        for version in spec.get("versions") or []:
            if version.get("storage") and version.get("name") not in stored:
                stored.append(version.get("name"))
        return {"conditions": made + kept, "acceptedNames": accepted, "storedVersions": stored}

    def _names_conflict(self, obj: Object) -> tuple[str, str] | None:
        names, own = obj["spec"].get("names") or {}, obj["metadata"].get("name")
        taken: set[str] = set()
        kinds: set[str] = set()
        for name, served in self._served.items():
            if name == own or not served or served[0].group != obj["spec"].get("group"):
                continue
            taken |= {served[0].plural, served[0].singular, *served[0].short_names}
            kinds |= {served[0].kind, served[0].list_name}
        for field, reason in (("plural", "PluralConflict"), ("singular", "SingularConflict")):
            if names.get(field) in taken:
                return reason, f'"{names[field]}" is already in use'
        for short in names.get("shortNames") or []:
            if short in taken:
                return "ShortNamesConflict", f'"{short}" is already in use'
        for field, reason in (("kind", "KindConflict"), ("listKind", "ListKindConflict")):
            if names.get(field) in kinds:
                return reason, f'"{names[field]}" is already in use'
        return None

    def load(self, entry: Entry) -> None:
        self._serve(msgspec.json.decode(entry.data))

    def changed(self, change: Change) -> None:
        obj = msgspec.json.decode(change.new.data)
        if change.type == DELETED:
            self._drop(change.new.name)
        else:
            self._serve(obj)

    def _serve(self, obj: Object) -> None:
        name = obj["metadata"]["name"]
        established = any(
            one.get("type") == "Established" and one.get("status") == "True"
            for one in (obj.get("status") or {}).get("conditions") or []
        )
        kinds = custom_kinds(obj) if established else []
        kept = {(kind.group, kind.version, kind.plural) for kind in kinds}
        for old in self._served.get(name, []):
            if (old.group, old.version, old.plural) not in kept:
                self._registry.remove(old)
        for kind in kinds:
            self._registry.add(kind)
        self._served[name] = kinds

    def _drop(self, name: str) -> None:
        for kind in self._served.pop(name, []):
            self._registry.remove(kind)
            for told in self.on_gone:
                told(kind)

    def kinds_of(self, name: str) -> list[Kind]:
        return self._served.get(name, [])


def custom_kinds(crd: Object) -> list[Kind]:
    """One kind for each served version."""
    spec = crd["spec"]
    names = spec["names"]
    storage = next(one["name"] for one in spec["versions"] if one.get("storage"))
    return [
        _custom_kind(spec, names, version, storage) for version in spec["versions"] if version.get("served")
    ]


def _deprecation(spec: Object, version: Object) -> str:
    kind, group = spec["names"]["kind"], spec["group"]
    said = f"{group}/{version['name']} {kind} is deprecated"
    newer = [one["name"] for one in spec["versions"] if one.get("served") and not one.get("deprecated")]
    if newer:
        said += f"; use {group}/{max(newer, key=version_order)} {kind}"
    return said


def _custom_kind(spec: Object, names: Object, version: Object, storage: str) -> Kind:
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    asked = version.get("subresources") or {}
    subresources: dict[str, Subresource] = {}
    scale = None
    if asked.get("scale"):
        paths = asked["scale"]
        scale = Scale(
            paths.get("specReplicasPath", ""),
            paths.get("statusReplicasPath", ""),
            paths.get("labelSelectorPath", ""),
        )
        subresources["scale"] = Subresource("scale", ("get", "patch", "update"), "Scale", "autoscaling", "v1")
    if "status" in asked:
        subresources["status"] = STATUS
    preserve = spec.get("preserveUnknownFields")
    deprecation = ""
    if version.get("deprecated"):
        deprecation = version.get("deprecationWarning") or _deprecation(spec, version)
    return Kind(
        spec["group"],
        version["name"],
        names["plural"],
        names.get("singular") or names["kind"].lower(),
        names["kind"],
        namespaced=spec.get("scope") != "Cluster",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        verbs=("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"),
        subresources=subresources,
        schema=compile_schema(
            schema | {"x-kubernetes-preserve-unknown-fields": True} if preserve else schema
        ),
        openapi=schema,
        columns=tuple(version.get("additionalPrinterColumns") or ()),
        scale=scale,
        list_kind=names.get("listKind") or "",
        storage_version=storage,
        fields={
            one["jsonPath"].lstrip("."): tuple(one["jsonPath"].lstrip(".").split("."))
            for one in version.get("selectableFields") or []
        },
        deprecation=deprecation,
    )
