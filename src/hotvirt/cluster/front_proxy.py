"""Who calls the aggregated API: the API server vouches for the user in request headers.

It proves who it is by a client certificate of the request-header CA. The CA, the names that its certificates
may have, and the headers stand in a ConfigMap that every API server keeps; it is followed, so that a new CA
counts at once. Headers without that certificate count for nothing.
"""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from aiohttp import web

from hotvirt.api.core import ConfigMap
from hotvirt.api.resources import CONFIGMAPS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import Unauthorized
from hotvirt.kube.x509 import certificates, pem

from .certificates import only

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

log = logging.getLogger(__name__)
NAMESPACE: Final = "kube-system"
CONFIG_MAP: Final = "extension-apiserver-authentication"
ANONYMOUS: Final = "system:anonymous"
AUTHENTICATED: Final = "system:authenticated"


@dataclass(frozen=True)
class Caller:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestHeader:
    """The agreement between the API server and what it proxies to."""

    ca: bytes
    allowed_names: tuple[str, ...] = ()
    """Whose certificates count; empty: those of everybody that the CA certified."""
    user_headers: tuple[str, ...] = ()
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: dict[str, str]) -> RequestHeader:
        """ValueError: the cluster has no such agreement, or it cannot be read."""

        def strings(name: str) -> tuple[str, ...]:
            values = json.loads(data.get(name) or "[]")
            if not isinstance(values, list):
                raise ValueError(f"{name} is not a list")
            return tuple(str(value) for value in values)

        ca = data.get("requestheader-client-ca-file", "")
        if not ca:
            raise ValueError("the API server has no request-header CA (--requestheader-client-ca-file)")
        return cls(
            ca=b"".join(pem(each) for each in certificates(ca.encode())),
            allowed_names=strings("requestheader-allowed-names"),
            user_headers=strings("requestheader-username-headers"),
            uid_headers=strings("requestheader-uid-headers"),
            group_headers=strings("requestheader-group-headers"),
            extra_prefixes=strings("requestheader-extra-headers-prefix"),
        )

    def caller(self, certified: str, headers: CIMultiDictProxy[str]) -> Caller | None:
        """The user that a proxy with this common name vouches for."""
        if self.allowed_names and certified not in self.allowed_names:
            return None
        name = next((value for header in self.user_headers if (value := headers.get(header))), "")
        if not name:
            return None
        groups = tuple(value for header in self.group_headers for value in headers.getall(header, ()))
        # The API server names it for users, but not for its own part that reads discovery and OpenAPI.
        if name != ANONYMOUS and AUTHENTICATED not in groups:
            groups = (*groups, AUTHENTICATED)
        uid = next((value for header in self.uid_headers if (value := headers.get(header))), "")
        extra: dict[str, list[str]] = {}
        for header, value in headers.items():
            for prefix in self.extra_prefixes:
                if header.lower().startswith(prefix.lower()):
                    extra.setdefault(unquote(header[len(prefix) :]).lower(), []).append(value)
        return Caller(name, groups, uid, extra)


class FrontProxy:
    """Authenticates requests. `trusted` is what the TLS server must verify client certificates by."""

    def __init__(self, client: Client) -> None:
        self._informer = only(client, CONFIGMAPS, ConfigMap, CONFIG_MAP, NAMESPACE)
        self._agreed: RequestHeader | None = None

    @property
    def trusted(self) -> bytes | None:
        return self._agreed.ca if self._agreed else None

    async def run(self, changed: Callable[[], None]) -> None:
        def follow(_old: ConfigMap | None, new: ConfigMap | None) -> None:
            self._agreed = _read(new)
            changed()

        self._informer.add_handler(follow)
        await self._informer.run()

    def not_ready(self) -> str | None:
        """Whether a user would be refused only because nobody has looked yet whom to believe."""
        return None if self._informer.has_synced else "the request-header CA has not been read yet"

    def authenticate(self, request: web.Request) -> Caller:
        """Raises Unauthorized, which says what is missing."""
        transport = request.transport
        peer: dict[str, Any] | None = transport.get_extra_info("peercert") if transport else None
        if self._agreed is None or not peer:
            raise unauthorized("this API is reached through the Kubernetes API server only")
        context = transport.get_extra_info("sslcontext") if transport else None
        if not is_still_trusted(context, self._agreed.ca):
            raise unauthorized("the certificate of this connection is no longer trusted; connect again")
        caller = self._agreed.caller(_common_name(peer), request.headers)
        if caller is None:
            raise unauthorized("the request names no user, or its proxy may not vouch for one")
        return caller


def is_still_trusted(context: ssl.SSLContext | None, ca: bytes) -> bool:
    """A connection outlives a change of CA: every CA that could have let it in must still count."""
    if context is None:
        return False
    then = {ssl.DER_cert_to_PEM_cert(der).strip() for der in context.get_ca_certs(binary_form=True)}
    now = {pem(each).decode().strip() for each in certificates(ca)}
    return then <= now


def unauthorized(message: str) -> Unauthorized:
    return Unauthorized(401, "Unauthorized", f"Unauthorized: {message}.")


def _read(config_map: ConfigMap | None) -> RequestHeader | None:
    if config_map is None:
        return None
    try:
        return RequestHeader.of(config_map.data)
    except ValueError as error:
        log.error("nobody can use the aggregated API: %s/%s: %s", NAMESPACE, CONFIG_MAP, error)
        return None


def _common_name(peer: dict[str, Any]) -> str:
    for part in peer.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""
