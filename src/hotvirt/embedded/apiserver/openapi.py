"""OpenAPI v3, made from the same tables and schemas that check the objects; `kubectl explain` reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .call import NoSuchPath, Reply
from .discovery import Discovery
from .kinds import Kind, Registry
from .types import Struct, Type, struct

Object = dict[str, Any]
# A valid document with nothing in it, for kubectl 1.27 and 1.28: swagger "2.0", info (title "h", "v1").
EMPTY_V2: Final = b"\n\x032.0\x12\x07\n\x01h\x12\x02v1"
V2_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_PREFIXES: Final = {
    "core": "io.k8s.api.core.v1",
    "meta": "io.k8s.apimachinery.pkg.apis.meta.v1",
    "apiextensions": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
}
_FIELDS_V1: Final = f"{_PREFIXES['meta']}.FieldsV1"
_SCALARS: Final[dict[str, Object]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "float": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "intorstr": {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"},
    "any": {"type": "object"},
}
_CONVENTIONS: Final = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
# The words of every Kubernetes API, so that `kubectl explain` of our kinds reads as on a cluster.
_COMMON: Final = {
    "apiVersion": "APIVersion defines the versioned schema of this representation of an object. Servers "
    "should convert recognized schemas to the latest internal value, and may reject unrecognized values. "
    f"More info: {_CONVENTIONS}#resources",
    "kind": "Kind is a string value representing the REST resource this object represents. Servers may infer "
    "this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. "
    f"More info: {_CONVENTIONS}#types-kinds",
    "metadata": f"Standard object's metadata. More info: {_CONVENTIONS}#metadata",
    "spec": "What is wanted.",
    "status": "What is observed.",
}


class OpenApi:
    def __init__(self, registry: Registry, discovery: Discovery) -> None:
        self._registry = registry
        self._discovery = discovery
        self._generation = -1
        self._documents: dict[str, tuple[bytes, str]] = {}

    def document(self, path: str, wanted_hash: str, headers: Mapping[str, str]) -> Reply:
        if path == "/openapi/v2":
            return Reply(EMPTY_V2, content_type=V2_TYPE)
        if not path.startswith("/openapi/v3"):
            raise NoSuchPath
        self._refresh()
        name = path.removeprefix("/openapi/v3").strip("/")
        if not name:
            return Reply(msgspec.json.encode(self._index()))
        group_version = self._split(name)
        if group_version is None:
            raise NoSuchPath
        body, digest = self._make(name, *group_version)
        answer = {"ETag": f'"{digest}"', "Vary": "Accept"}
        if wanted_hash == digest:
            answer["Cache-Control"] = "public, max-age=31536000, immutable"
        if headers.get("If-None-Match", "").strip('"') == digest:
            return Reply(b"", 304, headers=answer)
        return Reply(body, headers=answer)

    def _refresh(self) -> None:
        if self._generation != self._registry.generation:
            self._generation = self._registry.generation
            self._documents = {}

    def _split(self, name: str) -> tuple[str, str] | None:
        parts = name.split("/")
        if len(parts) == 2 and parts[0] == "api":
            found = ("", parts[1])
        elif len(parts) == 3 and parts[0] == "apis":
            found = (parts[1], parts[2])
        else:
            return None
        return found if found[1] in self._discovery.groups().get(found[0], {}) else None

    def _index(self) -> Object:
        paths = {}
        for group, versions in self._discovery.groups().items():
            for version in versions:
                name = f"apis/{group}/{version}" if group else f"api/{version}"
                _, digest = self._make(name, group, version)
                paths[name] = {"serverRelativeURL": f"/openapi/v3/{name}?hash={digest}"}
        return {"paths": paths}

    def _make(self, name: str, group: str, version: str) -> tuple[bytes, str]:
        known = self._documents.get(name)
        if known is None:
            kinds = self._discovery.groups().get(group, {}).get(version, [])
            body = msgspec.json.encode(document(kinds))
            known = self._documents[name] = (body, hashlib.sha512(body).hexdigest().upper())
        return known


def document(kinds: list[Kind]) -> Object:
    """The document of one group version."""
    schemas: Object = {}
    paths: Object = {}
    for kind in kinds:
        model = _model(kind, schemas)
        list_model = f"{model}List"
        schemas[list_model] = _list_schema(kind, model)
        _meta(schemas)
        paths.update(_paths(kind, model, list_model))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.37.1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _gvk(kind: Kind, name: str = "") -> Object:
    return {"group": kind.group, "kind": name or kind.kind, "version": kind.version}


def _model(kind: Kind, schemas: Object) -> str:
    if kind.struct is not None:
        name = model_name(kind.struct)
        _add_struct(kind.struct, schemas)
        schemas[name]["properties"] = {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            **schemas[name]["properties"],
        }
        for field, text in _COMMON.items():
            if field in schemas[name]["properties"]:
                schemas[name]["properties"][field] = {
                    **schemas[name]["properties"][field],
                    "description": text,
                }
        schemas[name]["x-kubernetes-group-version-kind"] = [_gvk(kind)]
        return name
    name = ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])
    schema = dict(kind.openapi or {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    properties = dict(schema.get("properties") or {})
    for field in ("apiVersion", "kind"):
        properties[field] = {"type": "string", "description": _COMMON[field]}
    _meta(schemas)
    properties["metadata"] = {
        "description": _COMMON["metadata"],
        "allOf": [_ref(f"{_PREFIXES['meta']}.ObjectMeta")],
        "default": {},
    }
    schema["properties"] = properties
    schema["x-kubernetes-group-version-kind"] = [_gvk(kind)]
    schemas[name] = schema
    return name


def _meta(schemas: Object) -> None:
    for name in ("meta.ObjectMeta", "meta.DeleteOptions"):
        _add_struct(struct(name), schemas)


def _list_schema(kind: Kind, model: str) -> Object:
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "items": {"type": "array", "items": {"allOf": [_ref(model)], "default": {}}},
            "metadata": {"type": "object"},
        },
        "x-kubernetes-group-version-kind": [_gvk(kind, kind.list_name)],
    }


def model_name(of: Struct) -> str:
    table, _, name = of.name.partition(".")
    return f"{_PREFIXES.get(table, f'io.k8s.api.{table}.v1')}.{name}"


def _ref(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}


def _add_struct(of: Struct, schemas: Object) -> None:
    name = model_name(of)
    if name in schemas:
        return
    schema: Object = {"type": "object", "properties": {}}
    schemas[name] = schema
    required = []
    for field in of.fields.values():
        schema["properties"][field.name] = _type(field.type, schemas)
        if field.name == "fieldsV1":
            schemas[_FIELDS_V1] = {"type": "object"}
            schema["properties"][field.name] = {"allOf": [_ref(_FIELDS_V1)]}
        if field.merges:
            schema["properties"][field.name]["x-kubernetes-patch-strategy"] = "merge"
            if field.merge_key:
                schema["properties"][field.name]["x-kubernetes-patch-merge-key"] = field.merge_key
        if field.always:
            required.append(field.name)
    if required:
        schema["required"] = sorted(required)


def _type(of: Type, schemas: Object) -> Object:
    if of.form == "scalar":
        return dict(_SCALARS[of.name])
    if of.form == "struct":
        _add_struct(of.struct, schemas)
        return {"allOf": [_ref(model_name(of.struct))]}
    assert of.element is not None
    inner = _type(of.element, schemas)
    if of.form == "list":
        return {"type": "array", "items": inner}
    return {"type": "object", "additionalProperties": inner}


_QUERY: Final[list[Object]] = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


def _paths(kind: Kind, model: str, list_model: str) -> Object:
    base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    if kind.namespaced:
        base += "/namespaces/{namespace}"
    collection = f"{base}/{kind.plural}"
    paths: Object = {}
    for path, method, verb, parameters, shown in (
        (collection, "get", "list", [], list_model),
        (collection, "post", "create", _QUERY, model),
        (f"{collection}/{{name}}", "get", "get", [], model),
        (f"{collection}/{{name}}", "put", "update", _QUERY, model),
        (f"{collection}/{{name}}", "patch", "patch", _QUERY, model),
        (f"{collection}/{{name}}", "delete", "delete", _QUERY[:1], model),
    ):
        if verb in kind.verbs:
            paths.setdefault(path, {})[method] = _operation(kind, verb, parameters, shown)
    return paths


_ACTIONS: Final = {"create": "post", "update": "put"}


def _operation(kind: Kind, verb: str, parameters: list[Object], shown: str) -> Object:
    content = {"application/json": {"schema": _ref(shown)}}
    return {
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": _ACTIONS.get(verb, verb),
        "x-kubernetes-group-version-kind": _gvk(kind),
    }
