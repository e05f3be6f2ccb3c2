"""The listeners: TLS on loopback for everybody, a unix socket for Hotvirt's own parts."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web

from hotvirt import __version__
from hotvirt.subresources.app import DISCOVERY

from . import auth
from .admit import AdmissionHooks
from .api import Api
from .audit import Audit
from .body import MAX_BODY
from .bootstrap import Bootstrap
from .call import NOT_FOUND_TEXT, Call, NoSuchPath, Reply, User, warning_value
from .cleaner import CrdCleaner
from .errors import StatusError, internal, no_such_resource
from .expiry import drop_old_events
from .log import logger
from .metrics import Metrics
from .negotiate import negotiate
from .quota_status import QuotaStatus
from .store import Store
from .subresources import NodeLogs

USER = web.RequestKey("user", User)
CALL = web.RequestKey("call", Call)
AGGREGATED = "/apis/subresources.kubevirt.io"
COMPACT_EVERY = 60.0
KUBERNETES = "v1.37.1"
"""The Kubernetes whose behaviour this server has."""


class Identities(auth.Tokens, Protocol):
    """The part of `pki.Pki` that is needed here."""

    def server_context(self) -> ssl.SSLContext: ...


class ApiServer:
    def __init__(
        self,
        store: Store,
        pki: Identities,
        admission: AdmissionHooks | None = None,
        subresources: web.Application | None = None,
        node_logs: NodeLogs | None = None,
        *,
        socket: Path | None = None,
        audit_log: Path | None = None,
        on_audit: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.store = store
        self.api = Api(store, admission, node_logs)
        self.metrics = Metrics(store, self.api.hub)
        self.audit = Audit(audit_log, on_audit)
        self._pki = pki
        self.tokens = auth.AllTokens(pki, self.api.tokens)
        self.api.reviews.tokens = self.tokens
        self._subresources = subresources
        self._socket = socket
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._cleaner = CrdCleaner(self.api)
        self._quota_status = QuotaStatus(self.api)
        self.api.on_change += [self._cleaner.changed, self._quota_status.changed]
        self.port = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> int:
        """Listen; returns the port. Raises OSError where the port is taken."""
        self.store.start()
        await Bootstrap(self.api).run()
        app = web.Application(middlewares=[self._serve], client_max_size=MAX_BODY)
        if self._subresources is not None:
            self.api.discovery.mounted.update(_mounted(self._subresources))
            app.add_subapp(AGGREGATED, self._subresources)
        app.router.add_route("*", "/{path:.*}", self._route)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        tcp = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=self._pki.server_context())
        await tcp.start()
        self.port = self._runner.addresses[0][1]
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
            await web.UnixSite(self._runner, str(self._socket)).start()
            self._socket.chmod(0o600)
        work = (self._compact(), self._cleaner.run(), self._quota_status.run())
        self._tasks = [asyncio.create_task(one) for one in work]
        return self.port

    async def stop(self) -> None:
        """End the watches, finish the requests under way, close the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.api.hub.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
        self.audit.close()
        await self.store.close()

    async def _compact(self) -> None:
        while True:
            await asyncio.sleep(COMPACT_EVERY)  # history ages by the clock: there is no event to wait for
            self.store.compact()
            try:
                await drop_old_events(self.api)
            except StatusError as error:
                logger.warning("Old events could not be deleted: %s", error.message)

    # One request -----------------------------------------------------------------------------------------

    async def answer(self, request: Any) -> web.StreamResponse:
        """Answer what looks like a request to an object or document of the API: for parts in this process."""
        return await self._serve(request, self._route)

    @web.middleware
    async def _serve(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        started = time.perf_counter()
        response: web.StreamResponse | None = None
        try:
            user = auth.impersonate(request, auth.authenticate(request, self.tokens))
            request[USER] = user
            if request.path.startswith(AGGREGATED) and not auth.allowed_everything(user):
                raise auth.forbidden_path(user, request.method, request.path)
            response = await handler(request)
        except StatusError as error:
            response = refusal(error)
        except NoSuchPath:
            response = web.Response(text=NOT_FOUND_TEXT, status=404)
        except web.HTTPRequestEntityTooLarge:
            response = refusal(
                StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")
            )
        except web.HTTPException as error:
            response = web.Response(text=error.text or NOT_FOUND_TEXT, status=error.status)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            response = refusal(internal("an unexpected error; the log has the details"))
        finally:
            call = request.get(CALL)
            self.metrics.observe(
                call, request.method, response.status if response else 499, time.perf_counter() - started
            )
            if call is not None:
                self.audit.request(call, response.status if response else 499)
        if (call := request.get(CALL)) is not None and call.warnings and not response.prepared:
            for warning in call.warnings:
                response.headers.add("Warning", warning_value(warning))
        return response

    async def _route(self, request: web.Request) -> web.StreamResponse:
        user = request[USER]
        path = request.path
        prefix = 2 if path.startswith("/api/") else 3 if path.startswith("/apis/") else 0
        if prefix and path.count("/") > prefix and not path.endswith("/"):
            call = self.api.parse(request, user)
            request[CALL] = call
            return sent(await self.api.answer(call))
        if not auth.may_read_path(user, path.rstrip("/") or "/"):
            raise auth.forbidden_path(user, request.method, path)
        return sent(self._document(request))

    def _document(self, request: web.Request) -> Reply:
        """Everything that is not an object."""
        if request.method not in ("GET", "HEAD"):
            raise NoSuchPath
        path = request.path.rstrip("/")
        if path in ("/healthz", "/livez", "/readyz") or path.startswith(("/livez/", "/readyz/", "/healthz/")):
            return Reply(b"ok", content_type="text/plain; charset=utf-8")
        if path == "/version":
            return Reply(_version())
        if path == "/metrics":
            return Reply(self.metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")
        if path.startswith("/openapi/"):
            return self.api.openapi.document(path, request.query.get("hash", ""), request.headers)
        if path in ("/api", "/apis"):
            return self._discovery(request, path == "/api")
        if path == "":
            return Reply(msgspec.json.encode({"paths": self._paths()}))
        parts = path.split("/")[1:]
        if parts[0] == "api" and parts[1:] != ["v1"]:
            raise no_such_resource()
        found = None
        if parts[0] == "api" and len(parts) == 2:
            found = self.api.discovery.resources("", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            found = self.api.discovery.group(parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            found = self.api.discovery.resources(parts[1], parts[2])
        if found is None:
            raise NoSuchPath
        return found

    def _discovery(self, request: web.Request, core: bool) -> Reply:
        accept = request.headers.get("Accept", "")
        for clause in accept.split(","):
            if "g=apidiscovery.k8s.io" in clause and "as=APIGroupDiscoveryList" in clause:
                for version in ("v2", "v2beta1"):
                    if f"v={version}" in [part.strip() for part in clause.split(";")]:
                        return self.api.discovery.aggregated(
                            core, version, request.headers.get("If-None-Match", "")
                        )
        negotiate(accept)
        if core:
            return self.api.discovery.api_versions(f"127.0.0.1:{self.port}")
        return self.api.discovery.group_list()

    def _paths(self) -> list[str]:
        paths = ["/api", "/api/v1", "/apis"]
        for group, versions in self.api.discovery.groups().items():
            if group:
                paths += [f"/apis/{group}", *(f"/apis/{group}/{version}" for version in versions)]
        return [*paths, "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]


def sent(reply: Reply | web.StreamResponse) -> web.StreamResponse:
    if isinstance(reply, web.StreamResponse):
        return reply
    headers = {"Content-Type": reply.content_type, "Cache-Control": "no-cache, private", **reply.headers}
    return web.Response(body=reply.body, status=reply.status, headers=headers)


def refusal(error: StatusError) -> web.Response:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-cache, private", **error.headers}
    if error.details and (seconds := error.details.get("retryAfterSeconds")):
        headers["Retry-After"] = str(seconds)
    return web.Response(body=msgspec.json.encode(error.status()), status=error.code, headers=headers)


def _mounted(app: web.Application) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What the aggregated API serves, in discovery's words."""
    return {("subresources.kubevirt.io", version): resources for version, resources in app[DISCOVERY].items()}


def _version() -> bytes:
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    return msgspec.json.encode(
        {
            "major": major,
            "minor": minor,
            "gitVersion": f"{KUBERNETES}+hotvirt{__version__}",
            "gitCommit": "",
            "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "",
            "compiler": "python",
            "platform": "linux/amd64",
        }
    )
