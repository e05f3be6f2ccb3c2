"""Who asks, and may they? Masters and Hotvirt's own parts may do everything, others next to nothing."""

from __future__ import annotations

from typing import Any, Final, Protocol

from aiohttp import web

from hotvirt.api import names

from .call import Call, User
from .errors import StatusError, details_of, group_resource

ANONYMOUS: Final = User("system:anonymous", ("system:unauthenticated",))
AUTHENTICATED: Final = "system:authenticated"
MASTERS: Final = "system:masters"
COMPONENTS: Final = frozenset(
    {
        *names.HOTVIRT_USERS,
        "system:kube-scheduler",
        "system:kube-controller-manager",
        "system:apiserver",
    }
)
PUBLIC: Final = ("/healthz", "/livez", "/readyz", "/version")
DISCOVERY: Final = ("/api", "/apis", "/openapi", *PUBLIC)
SELF_REVIEWS: Final = frozenset(["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"])


class TokenUser(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def uid(self) -> str: ...


class Tokens(Protocol):
    """The part of `pki.Pki` that knows the tokens."""

    def user_of_token(self, token: str) -> TokenUser | None: ...


class AllTokens:
    """The static users, then the service accounts. A static token is good as long as this process."""

    def __init__(self, static: Tokens, issued: Tokens) -> None:
        self._static = static
        self._issued = issued
        self._known: dict[str, User] = {}

    def user_of_token(self, token: str) -> User | None:
        known = self._known.get(token)
        if known is not None:
            return known
        user = self._static.user_of_token(token)
        if user is not None:
            known = self._known[token] = User(user.name, (*user.groups, AUTHENTICATED), user.uid)
            return known
        user = self._issued.user_of_token(token)
        return User(user.name, (*user.groups, AUTHENTICATED), user.uid) if user is not None else None


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def authenticate(request: web.Request, tokens: AllTokens) -> User:
    """The user of a request; nobody in particular without credentials, 401 with wrong ones."""
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        known = tokens.user_of_token(token.strip())
        if known is None:
            raise unauthorized()
        return known
    transport = request.transport
    certificate: dict[str, Any] | None = transport.get_extra_info("peercert") if transport else None
    if certificate:
        subject: dict[str, list[str]] = {}
        for part in certificate.get("subject", ()):
            for key, value in part:
                subject.setdefault(key, []).append(value)
        if name := subject.get("commonName"):
            return User(name[-1], (*subject.get("organizationName", []), AUTHENTICATED))
    return ANONYMOUS


def is_master(user: User) -> bool:
    return MASTERS in user.groups


def allowed_everything(user: User) -> bool:
    return is_master(user) or user.name in COMPONENTS


def impersonate(request: web.Request, user: User) -> User:
    """`kubectl --as`: masters may be anybody."""
    headers = request.headers
    name = headers.get("Impersonate-User", "")
    groups = tuple(headers.getall("Impersonate-Group", []))
    if not name:
        if groups or "Impersonate-Uid" in headers:
            raise StatusError(
                500,
                "InternalError",
                f"Internal error occurred: requested {list(groups) or 'a uid'} without impersonating a user",
            )
        return user
    if not is_master(user):
        raise StatusError(
            403,
            "Forbidden",
            f'users "{name}" is forbidden: User "{user.name}" cannot impersonate resource "users" '
            'in API group "" at the cluster scope',
            details_of("", "users", name),
        )
    extra: dict[str, list[str]] = {}
    for key, value in headers.items():
        if key.lower().startswith("impersonate-extra-"):
            extra.setdefault(key[len("impersonate-extra-") :].lower(), []).append(value)
    if name != ANONYMOUS.name and AUTHENTICATED not in groups:
        if name.startswith("system:serviceaccount:") and not groups:
            namespace = name.split(":")[2]
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        groups = (*groups, AUTHENTICATED)
    elif name == ANONYMOUS.name and not groups:
        groups = ANONYMOUS.groups
    return User(name, groups, headers.get("Impersonate-Uid", ""), extra)


def may_read_path(user: User, path: str) -> bool:
    if allowed_everything(user):
        return True
    known = DISCOVERY if AUTHENTICATED in user.groups else PUBLIC
    return any(path == one or path.startswith(one + "/") for one in known)


def may(user: User, verb: str, group: str, resource: str) -> bool:
    if allowed_everything(user):
        return True
    return AUTHENTICATED in user.groups and verb == "create" and resource in SELF_REVIEWS


def forbidden_path(user: User, method: str, path: str) -> StatusError:
    return StatusError(
        403, "Forbidden", f'forbidden: User "{user.name}" cannot {method.lower()} path "{path}"', {}
    )


def forbidden_call(call: Call) -> StatusError:
    kind = call.kind
    subject = group_resource(kind.group, call.resource)
    if call.name:
        subject += f' "{call.name}"'
    where = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
    return StatusError(
        403,
        "Forbidden",
        f'{subject} is forbidden: User "{call.user.name}" cannot {call.verb} resource "{call.resource}" '
        f'in API group "{kind.group}" {where}',
        details_of(kind.group, kind.plural, call.name),
    )
