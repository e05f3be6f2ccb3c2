"""Request bodies: JSON, YAML or protobuf in, a plain object out, with what the client should be warned of."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

import msgspec
import yaml

from . import protobuf
from .call import Call
from .errors import StatusError, bad_request, invalid, not_supported, unsupported_media_type
from .kinds import Kind
from .schema import fill, prune
from .types import Struct, WrongType, conform, struct

JSON_TYPES: Final = ("application/json", "application/octet-stream", "text/plain", "")
PATCHES: Final = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
    "application/apply-patch+cbor": "apply",
}
MAX_BODY: Final = 3 * 1024 * 1024 + 64 * 1024
"""etcd takes 1.5 MiB and the API server reads 3 MiB; larger ones are refused as there."""


class Unfit(StatusError):
    """400: the body is no object of this kind."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(400, "BadRequest", message)
        self.why = why


def content_type(call: Call) -> str:
    raw = call.request.headers.get("Content-Type", "")
    return raw.partition(";")[0].strip().lower()


async def read_body(call: Call) -> bytes:
    return await call.request.read()


def decode_json(data: bytes) -> tuple[Any, list[str]]:
    """The value, and the paths of keys that stand twice in one object."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the object provided is unrecognized (must be of type JSON): {error}") from None
    # Compact JSON without duplicates comes out as long as it went in; only the rest is looked at closely.
    if len(msgspec.json.encode(value)) == len(data):
        return value, []
    return value, _duplicates(data)


class _Marked(dict[str, Any]):
    duplicates: tuple[str, ...] = ()


def _duplicates(data: bytes) -> list[str]:
    def pairs(items: list[tuple[str, Any]]) -> _Marked:
        marked = _Marked(items)
        if len(marked) != len(items):
            counted = Counter(key for key, _ in items)
            marked.duplicates = tuple(key for key, count in counted.items() if count > 1)
        return marked

    try:
        value = json.loads(data, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return []
    found: list[str] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, _Marked):
            for key in value.duplicates:
                found.append(f"{path}.{key}" if path else key)
            for key, one in value.items():
                walk(one, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for index, one in enumerate(value):
                walk(one, f"{path}[{index}]")

    walk(value, "")
    return found


async def read_object(
    call: Call, kind: Kind, fields: Struct | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The object of a create or update as the client wrote it, and what is strictly wrong with it."""
    data = await read_body(call)
    type_ = content_type(call)
    if not data:
        raise bad_request("the body of the request was empty; send the object")
    problems: list[str] = []
    value: Any
    if type_ == protobuf.CONTENT_TYPE:
        value = _from_protobuf(fields or kind.struct, data)
    elif type_ in JSON_TYPES:
        value, duplicates = decode_json(data)
        problems = [f'duplicate field "{path}"' for path in duplicates]
    elif type_ in ("application/yaml", "application/x-yaml"):
        try:
            value = yaml.safe_load(data)
        except yaml.YAMLError as error:
            raise bad_request(f"error converting YAML to JSON: {error}") from None
    else:
        raise unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json, application/yaml, application/vnd.kubernetes.protobuf"
        )
    if not isinstance(value, dict):
        raise bad_request("the object provided is unrecognized (must be of type JSON): it is no object")
    return value, problems


def _from_protobuf(fields: Struct | None, data: bytes) -> dict[str, Any]:
    if fields is None:
        raise unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json, application/yaml"
        )
    try:
        api_version, name, raw = protobuf.unwrap(data)
        return {"apiVersion": api_version, "kind": name, **protobuf.decode(fields, raw)}
    except (protobuf.BadProtobuf, UnicodeDecodeError) as error:
        raise bad_request(f"the protobuf in the body cannot be read: {error}") from None


def check_type(kind: Kind, obj: dict[str, Any]) -> None:
    """apiVersion and kind are those of the URL; left out, they are taken from there (built-in kinds)."""
    api_version, name = obj.get("apiVersion"), obj.get("kind")
    if not api_version and not name and not kind.custom:
        obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind
        return
    shown = msgspec.json.encode(obj).decode()[:512]
    if not name:
        raise bad_request(f"Object 'Kind' is missing in '{shown}'")
    if not api_version:
        raise bad_request(f"Object 'apiVersion' is missing in '{shown}'")
    if api_version != kind.api_version:
        raise bad_request(
            f"the API version in the data ({api_version}) does not match "
            f"the expected API version ({kind.api_version})"
        )
    if name != kind.kind:
        why = f"it is a {name}, and this is the place for {kind.kind}"
        raise Unfit(f'{name} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}', why)


def normalise(
    call: Call,
    kind: Kind,
    obj: dict[str, Any],
    problems: list[str] | None = None,
    known: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Drop what the type does not know, put the defaults in, and tell the client as it asked to be told.

    `known` is the object as it is stored.
    """
    problems = problems if problems is not None else []
    unknown: list[str] = []
    if kind.schema is not None:
        if not isinstance(obj.get("metadata", {}), dict):
            raise bad_request(
                f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
                "metadata is no object"
            )
        obj["metadata"] = _conform_metadata(kind, obj.get("metadata") or {}, unknown)
        if fill(kind.schema, obj):
            prune(kind.schema, obj, unknown)
    else:
        assert kind.struct is not None
        try:
            obj = conform(kind.struct, obj, unknown, known)
        except WrongType as error:
            raise _cannot_handle(kind, error) from None
        obj.setdefault("metadata", {})
    for name in ("labels", "annotations", "finalizers", "ownerReferences"):
        if name in obj["metadata"] and not obj["metadata"][name]:
            del obj["metadata"][name]
    report(call, [*problems, *(f'unknown field "{path}"' for path in unknown)])
    return obj


def _conform_metadata(kind: Kind, metadata: dict[str, Any], unknown: list[str]) -> dict[str, Any]:
    inner: list[str] = []
    try:
        result = conform(_OBJECT_META, metadata, inner)
    except WrongType as error:
        raise _cannot_handle(kind, error) from None
    unknown.extend(f"metadata.{path}" for path in inner)
    return result


_OBJECT_META: Final = struct("meta.ObjectMeta")


def _cannot_handle(kind: Kind, error: WrongType) -> StatusError:
    said = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {error}'
    return Unfit(said, str(error))


def report(call: Call, problems: list[str]) -> None:
    """Refuse, warn of or ignore strict problems, as `fieldValidation` says."""
    level = call.query.get("fieldValidation") or "Warn"
    if level not in ("Strict", "Warn", "Ignore"):
        options = {"create": "CreateOptions", "patch": "PatchOptions"}.get(call.verb, "UpdateOptions")
        raise invalid(
            "meta.k8s.io",
            options,
            "",
            [not_supported("fieldValidation", level, ["", "Ignore", "Strict", "Warn"])],
        )
    if not problems or level == "Ignore":
        return
    if level == "Warn":
        for problem in problems:
            call.warn(problem)
        return
    kind, said = call.kind, f"strict decoding error: {', '.join(problems)}"
    if call.verb != "patch":
        said = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {said}'
    raise bad_request(said)
