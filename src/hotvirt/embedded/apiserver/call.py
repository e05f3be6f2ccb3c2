"""One request: what it asks of which resource, who asks, and what will be said beside the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import web

from hotvirt.api import names

from .errors import (
    StatusError,
    bad_request,
    invalid,
    no_such_resource,
    not_found,
    not_supported,
)
from .kinds import Kind, Registry
from .store import Key

NOT_FOUND_TEXT: Final = "404 page not found\n"
JSON: Final = "application/json"
SAFE: Final = frozenset(["get", "list", "watch"])
NODES_GROUP: Final = "system:nodes"
FOLLOWERS: Final = frozenset([names.CONTROLLER_USER, names.NODE_USER, "system:kube-scheduler"])


class NoSuchPath(Exception):
    """Answered with a plain-text 404, as Kubernetes does for what it does not serve."""


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Call:
    request: web.Request
    user: User
    kind: Kind
    namespace: str
    name: str
    subresource: str
    verb: str
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.query = self.request.query

    @property
    def key(self) -> Key:
        return (self.kind.store_key, self.namespace, self.name)

    @property
    def durable(self) -> bool:
        """Whether the answer to a write waits for the disk. What these write follows from what others wrote
        and from the machines that run: after a power cut they write it again.
        """
        return self.user.name not in FOLLOWERS and NODES_GROUP not in self.user.groups

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        text = self.query.get(name)
        if text is None or text == "":
            return None
        try:
            return int(text)
        except ValueError:
            said = f'strconv.ParseInt: parsing "{text}": invalid syntax'
            if name == "resourceVersion":
                why = said.replace("ParseInt", "ParseUint")
                said = f'invalid resource version: {name}: Invalid value: "{text}": {why}'
            raise bad_request(said) from None

    @property
    def dry_run(self) -> bool:
        return self.check_dry_run(self.query.getall("dryRun", []))

    def check_dry_run(self, values: list[str]) -> bool:
        for value in values:
            if value != "All":
                kind = {"create": "CreateOptions", "patch": "PatchOptions", "update": "UpdateOptions"}
                errors = [not_supported("dryRun", values, ["All"])]
                raise invalid("meta.k8s.io", kind.get(self.verb, "DeleteOptions"), "", errors)
        return bool(values)


@dataclass
class Reply:
    """An answer that is already bytes."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


def json_reply(obj: Any, status: int = 200) -> Reply:
    return Reply(msgspec.json.encode(obj), status)


_VERBS: Final = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}


def parse_path(registry: Registry, request: web.Request, user: User) -> Call:
    """Which resource a path under /api or /apis means."""
    try:
        return _parse_path(registry, request, user)
    except NoSuchPath:
        # Built-in groups say it with a Status, all others in plain text: as kube-apiserver.
        parts = request.path.split("/")
        if parts[1] == "api" or registry.is_builtin(parts[2], parts[3]):
            raise no_such_resource() from None
        raise


def _parse_path(registry: Registry, request: web.Request, user: User) -> Call:
    parts = [part for part in request.path.split("/") if part]
    group = version = ""
    if parts[0] == "api" and len(parts) > 2:
        version, rest = parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise NoSuchPath
    watching = rest[0] == "watch" and len(rest) > 1
    if watching:
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    kind = registry.find(group, version, rest[0])
    if kind is None:
        raise NoSuchPath
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if bool(namespace) != kind.namespaced and (namespace or name):
        raise NoSuchPath
    if subresource and subresource not in kind.subresources:
        if kind.custom and subresource in ("status", "scale"):
            raise not_found(kind.group, kind.plural, name)
        raise NoSuchPath
    if len(rest) > 3:
        raise NoSuchPath
    verb = _verb(request, kind, namespace, name, subresource, watching)
    if group == "" and kind.plural == "namespaces":
        namespace = ""
    return Call(request, user, kind, namespace, name, subresource, verb)


def _verb(
    request: web.Request, kind: Kind, namespace: str, name: str, subresource: str, watching: bool
) -> str:
    verb = _VERBS.get(request.method)
    if verb is None:
        raise method_not_allowed()
    if not name:
        if verb == "get":
            asked = request.query.get("watch", "").lower()
            verb = "watch" if watching or asked in ("true", "1") else "list"
        elif verb == "delete":
            verb = "deletecollection"
        if verb in ("update", "patch") or (kind.namespaced and not namespace and verb not in SAFE):
            raise method_not_allowed()
    elif watching or (
        verb == "get" and not subresource and request.query.get("watch", "").lower() in ("true", "1")
    ):
        verb = "watch"
    elif verb == "create" and not subresource:
        raise method_not_allowed()
    served = kind.subresources[subresource].verbs if subresource else kind.verbs
    if verb not in served and not (verb == "watch" and subresource == ""):
        raise method_not_allowed()
    return verb


def method_not_allowed() -> StatusError:
    return StatusError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {}
    )


def warning_value(text: str) -> str:
    """An RFC 7234 warn-value: one line; as Kubernetes sends it, in UTF-8."""
    clean = " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{clean}"'
