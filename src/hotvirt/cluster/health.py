"""What the kubelet and Prometheus ask a process: /healthz, /readyz, /metrics, on a plain port of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest

from .listener import open_socket

LEADER: Final = Gauge(
    "leader_election_master_status", "1 where this process leads, 0 where it waits to.", ["name"]
)
Reason = Callable[[], str | None]


class Health:
    """Ready when no reason against it stands."""

    def __init__(self) -> None:
        self._reasons: dict[str, Reason] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    def unless(self, name: str, reason: Reason) -> None:
        """Not ready as long as `reason()` says why."""
        self._reasons[name] = reason

    def not_ready(self, name: str, why: str) -> None:
        self.unless(name, lambda: why)

    def ready(self, name: str) -> None:
        self._reasons.pop(name, None)

    def reasons(self) -> list[str]:
        return [f"{name}: {why}" for name, reason in self._reasons.items() if (why := reason())]

    async def start(self, address: str, port: int) -> None:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        listening = open_socket(address, port)
        self.port = int(listening.getsockname()[1])
        await web.SockSite(self._runner, listening).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        reasons = self.reasons()
        return web.Response(text="\n".join(reasons or ["ok"]) + "\n", status=503 if reasons else 200)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})
