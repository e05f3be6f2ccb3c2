"""The API itself: from a request to its answer. `server.py` listens and asks who it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from .admit import AdmissionHooks, Admit
from .auth import forbidden_call, may
from .builtin import builtin_strategies
from .call import Call, Reply, User, json_reply, parse_path
from .crds import RESOURCE as CRD_RESOURCE
from .crds import Crds, CrdStrategy
from .delete import Deleter
from .discovery import Discovery
from .hub import Hub
from .kinds import Registry
from .negotiate import negotiate
from .openapi import OpenApi
from .quota import QuotaGate
from .read import Reader, partial
from .reviews import Reviews
from .store import Change, Store
from .strategies import Strategies
from .subresources import NodeLogs, Subresources
from .tables import Tables
from .tokens import IssuedTokens
from .write import Writer


class Api:
    def __init__(
        self, store: Store, admission: AdmissionHooks | None = None, node_logs: NodeLogs | None = None
    ) -> None:
        self.store = store
        self.registry = Registry()
        self.hub = Hub()
        self.crds = Crds(self.registry)
        self.tables = Tables()
        self.discovery = Discovery(self.registry)
        self.openapi = OpenApi(self.registry, self.discovery)
        self.admit = Admit(store, admission)
        self.quota = QuotaGate(store)
        self.tokens = IssuedTokens(store)
        strategies = Strategies(
            {CRD_RESOURCE: CrdStrategy(self.crds), **builtin_strategies(store, self.quota)}
        )
        self.writer = Writer(store, self.admit, strategies)
        self.reader = Reader(store, self.hub, self.tables)
        self.deleter = Deleter(store, self.admit, strategies, self.writer, self.reader)
        parts = (store, self.writer, self.deleter, self.reader, self.tokens)
        self.subresources = Subresources(*parts, node_logs)
        self.reviews = Reviews()
        self.on_change: list[Callable[[Change], None]] = []
        self.crds.on_gone.append(lambda kind: self.hub.close_resource(kind.store_key))
        store.on_change = self._changed
        for entry in store.entries(CRD_RESOURCE):
            self.crds.load(entry)

    def _changed(self, change: Change) -> None:
        if change.new.key[0] == CRD_RESOURCE:
            self.crds.changed(change)
        self.hub.publish(change)
        for told in self.on_change:
            told(change)

    def parse(self, request: web.Request, user: User) -> Call:
        call = parse_path(self.registry, request, user)
        if call.kind.deprecation:
            call.warn(call.kind.deprecation)
        return call

    async def answer(self, call: Call) -> Reply | web.StreamResponse:
        if not may(call.user, call.verb, call.kind.group, call.kind.plural):
            raise forbidden_call(call)
        if not call.kind.persistent:
            return await self.reviews.create(call)
        if call.subresource and call.subresource != "status":
            return await self.subresources.answer(call)
        if call.verb == "get":
            return self.reader.get(call)
        if call.verb == "list":
            return self.reader.list_(call)
        if call.verb == "watch":
            return await self.reader.watch(call)
        form = negotiate(call.request.headers.get("Accept", ""))
        obj, status = await self._write(call)
        if form.name == "metadata" and obj.get("kind") != "Status":
            obj = partial(obj, form.version)
        return json_reply(obj, status)

    async def _write(self, call: Call) -> tuple[dict[str, Any], int]:
        if call.verb == "create":
            return await self.writer.create(call)
        if call.verb == "update":
            return await self.writer.update(call)
        if call.verb == "patch":
            return await self.writer.patch(call), 200
        if call.verb == "deletecollection":
            return await self.deleter.delete_collection(call), 200
        return await self.deleter.delete(call)
