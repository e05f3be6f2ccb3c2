"""The TLS port of a controller: admission webhooks, and the aggregated API `subresources.kubevirt.io`.

API servers show no certificate to webhooks, so these answer whoever reaches the port. They change nothing;
they tell what would come of an edit that the asker brings, with the room around the machine. The aggregated
API answers users for whom the API server vouches, and asks the cluster what each may do.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import Histogram

from hotvirt import __version__
from hotvirt.admission.review import Phase, review
from hotvirt.admission.webhooks import Admission
from hotvirt.kube.errors import ApiError
from hotvirt.kube.x509 import server_context
from hotvirt.subresources.app import status_response

from .authorize import Authorizer
from .certificates import Source
from .front_proxy import FrontProxy
from .listener import Listener

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
AGGREGATED: Final = "/apis/subresources.kubevirt.io"
LARGEST_REVIEW: Final = 16 << 20
"""A review holds an object twice; the API server takes 3 MiB for one."""
KEEP_ALIVE: Final = 300.0
"""Longer than the API server keeps an idle connection (90 s): it must never write into one that we close."""
LATENCY: Final = Histogram(
    "controller_runtime_webhook_latency_seconds", "Seconds that an admission webhook takes.", ["webhook"]
)


class Serving:
    def __init__(
        self,
        address: str,
        port: int,
        source: Source,
        front_proxy: FrontProxy,
        authorizer: Authorizer,
        admission: Admission,
        subresources: web.Application,
    ) -> None:
        self._address = address
        self._port = port
        self._source = source
        self._front_proxy = front_proxy
        self._authorizer = authorizer
        self._changed = asyncio.Event()
        self._listener: Listener | None = None
        self._app = web.Application(middlewares=[self._protect], client_max_size=LARGEST_REVIEW)
        self._app.on_response_prepare.append(self._part)
        self._app.router.add_post("/mutate", _webhook(admission, "mutate"))
        self._app.router.add_post("/validate", _webhook(admission, "validate"))
        self._app.router.add_get("/openapi/v2", _no_openapi_v2)
        self._app.router.add_get("/openapi/v3", _no_openapi_v3)
        self._app.add_subapp(AGGREGATED, subresources)
        self._runner = web.AppRunner(
            self._app, access_log=None, keepalive_timeout=KEEP_ALIVE, shutdown_timeout=5.0
        )
        self._leaving = False

    @property
    def port(self) -> int:
        return self._listener.port if self._listener else self._port

    def changed(self) -> None:
        """The certificate or the request-header CA is another one."""
        self._changed.set()

    def leave(self) -> None:
        """Go on answering, but let each caller come back on a new connection: to somebody else."""
        self._leaving = True

    def not_ready(self) -> str | None:
        if self._listener is None or not self._listener.is_open:
            return "there is no certificate to show yet"
        return None

    async def run(self) -> None:
        """Serve with whatever is to be shown now, until cancelled; then finish what was begun."""
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = Listener(self._address, self._port, self._runner.server)
        shown: object = None
        try:
            while True:
                self._changed.clear()
                wanted = (self._source.shown, self._front_proxy.trusted)
                if wanted[0] is not None and wanted != shown:
                    try:
                        await self._listener.use(self._context())
                        shown = wanted
                    except (ssl.SSLError, ValueError) as error:
                        log.error("the new certificate cannot be used, the old one stays: %s", error)
                await self._changed.wait()
        finally:
            self._listener.close()
            await self._runner.cleanup()

    def _context(self) -> ssl.SSLContext:
        shown = self._source.shown
        assert shown is not None
        return server_context(shown.chain, shown.key, self._front_proxy.trusted)

    async def _part(self, _request: web.Request, response: web.StreamResponse) -> None:
        if self._leaving:
            response.force_close()

    @web.middleware
    async def _protect(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method == "POST" and request.path in ("/mutate", "/validate"):
            return await handler(request)
        try:
            caller = self._front_proxy.authenticate(request)
            await self._authorizer.authorize(caller, request.method, request.path)
        except ApiError as error:
            answer = status_response(error)
            if error.code == 401:
                answer.force_close()
            return answer
        return await handler(request)


def _webhook(admission: Admission, phase: Phase) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        with LATENCY.labels(phase).time():
            try:
                body = msgspec.json.decode(await request.read())
                answer = await review(admission, phase, body)
            except (msgspec.DecodeError, KeyError, TypeError) as error:
                log.warning("a request to /%s is not an AdmissionReview: %r", phase, error)
                return web.Response(status=400, text="This is not an AdmissionReview.\n")
        return _json(answer)

    return handler


async def _no_openapi_v2(_request: web.Request) -> web.Response:
    info = {"title": "subresources.kubevirt.io", "version": f"v{__version__}"}
    return _json({"swagger": "2.0", "info": info, "paths": {}})


async def _no_openapi_v3(_request: web.Request) -> web.Response:
    return _json({"paths": {}})


def _json(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
