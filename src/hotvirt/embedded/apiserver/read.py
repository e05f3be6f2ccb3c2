"""Get, list and watch."""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from .call import Call, Reply, warning_value
from .errors import (
    FieldError,
    StatusError,
    bad_request,
    expired,
    forbidden_value,
    invalid,
    not_found,
    not_supported,
)
from .hub import Hub, Watch
from .kinds import Kind
from .negotiate import Form, negotiate
from .selectors import Selection
from .store import ADDED, Entry, Store
from .tables import Tables
from .write import load

BOOKMARK_EVERY: Final = 60.0


class InsideStream(web.StreamResponse):
    """A watch that whoever asked for it reads itself, in this process: there is no connection."""

    chunks: AsyncGenerator[bytes, None]
    end: Callable[[], None] = staticmethod(lambda: None)
    hear: Callable[[Callable[[bytes], None] | None], None] = staticmethod(lambda listener: None)
    """Tell whom to call with each change when it happens; `chunks` has the rest."""

    def __init__(self, patient: bool = False) -> None:
        """`patient`: lets others go first."""
        super().__init__()
        self.patient = patient

    @property
    def prepared(self) -> bool:
        return True


STREAM: Final = web.RequestKey("stream", InsideStream)


class Reader:
    def __init__(self, store: Store, hub: Hub, tables: Tables) -> None:
        self._store = store
        self._hub = hub
        self._tables = tables

    # Get -------------------------------------------------------------------------------------------------

    def get(self, call: Call) -> Reply:
        form = negotiate(call.request.headers.get("Accept", ""))
        entry = self._store.get(call.key)
        version = call.number("resourceVersion")
        if version is not None and version > self._store.revision:
            raise too_large(version, self._store.revision)
        if entry is None:
            raise not_found(call.kind.group, call.kind.plural, call.name)
        if form.name == "object":
            return Reply(self.plain(call.kind, entry))
        if form.name == "table":
            table = self._tables.table(
                call.kind, [entry], form.version, include(call), {"resourceVersion": str(entry.rev)}
            )
            return Reply(msgspec.json.encode(table))
        return Reply(msgspec.json.encode(partial(load(call.kind, entry), form.version)))

    def plain(self, kind: Kind, entry: Entry) -> bytes:
        """The object as bytes, in the version of `kind`; the stored bytes themselves where they fit."""
        if kind.from_stored is None and (not kind.storage_version or kind.storage_version == kind.version):
            return entry.data
        return msgspec.json.encode(load(kind, entry))

    def selection(self, call: Call) -> Selection:
        return Selection(
            call.query.get("labelSelector", ""),
            self._field_selector(call),
            call.kind.fields,
            call.kind.namespaced,
            call.kind.custom,
        )

    def _field_selector(self, call: Call) -> str:
        text = call.query.get("fieldSelector", "")
        if call.verb == "watch" and call.name:
            own = f"metadata.name={call.name}"
            return f"{text},{own}" if text else own
        return text

    # List ------------------------------------------------------------------------------------------------

    def list_(self, call: Call) -> Reply:
        form = negotiate(call.request.headers.get("Accept", ""))
        _check_list_options(call)
        selection = self.selection(call)
        limit = max(0, call.number("limit") or 0)
        call.number("timeoutSeconds")
        entries, revision, start = self._snapshot(call, limit)
        if selection:
            entries = [entry for entry in entries if selection.matches(entry)]
        if start is not None:
            entries = [entry for entry in entries if (entry.namespace, entry.name) > start]
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if limit and len(entries) > limit:
            last = entries[limit - 1]
            metadata["continue"] = encode_continue(revision, last)
            if not selection:
                metadata["remainingItemCount"] = len(entries) - limit
            entries = entries[:limit]
        if form.name == "table":
            return Reply(
                msgspec.json.encode(
                    self._tables.table(call.kind, entries, form.version, include(call), metadata)
                )
            )
        head: dict[str, Any]
        if form.name == "metadata":
            items = [msgspec.json.encode(partial(load(call.kind, entry), form.version)) for entry in entries]
            head = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{form.version}"}
        else:
            items = self._items(call.kind, entries)
            head = {"kind": call.kind.list_name, "apiVersion": call.kind.api_version}
        prefix = msgspec.json.encode(head | {"metadata": metadata})[:-1] + b',"items":['
        return Reply(b"".join((prefix, b",".join(items), b"]}")))

    def _items(self, kind: Kind, entries: list[Entry]) -> list[bytes]:
        """In a list, objects of built-in kinds do without apiVersion and kind; custom resources have them."""
        items = [self.plain(kind, entry) for entry in entries]
        if kind.custom:
            return items
        head = msgspec.json.encode({"apiVersion": kind.api_version, "kind": kind.kind})[:-1] + b","
        cut = len(head)
        return [b"{" + item[cut:] if item.startswith(head) else item for item in items]

    def _snapshot(self, call: Call, limit: int) -> tuple[list[Entry], int, tuple[str, str] | None]:
        """The entries, at which revision, and behind which name to go on."""
        store, resource, namespace = self._store, call.kind.store_key, call.namespace
        if token := call.query.get("continue"):
            revision, start = decode_continue(token)
            if call.query.get("resourceVersion") not in (None, "", "0"):
                raise bad_request("specifying resource version is not allowed when using continue")
            if revision < store.compacted:
                raise self._continue_expired(token, start)
            if revision < 0:
                revision = store.revision
            return store.list_at(resource, namespace, revision), revision, start
        version = call.number("resourceVersion") or 0
        if version > store.revision:
            raise too_large(version, store.revision)
        exact = call.query.get("resourceVersionMatch") == "Exact"
        if exact or (limit and version and not call.query.get("resourceVersionMatch")):
            if version < store.compacted:
                raise expired("The provided resource version is too old to display a consistent list.")
            return store.list_at(resource, namespace, version), version, None
        return list(store.entries(resource, namespace)), store.revision, None

    def _continue_expired(self, token: str, start: tuple[str, str]) -> StatusError:
        error = expired(
            "The provided continue parameter is too old to display a consistent list result. "
            "You can start a new list "
            "without the continue parameter, or use the continue token in this response to "
            "retrieve the remainder of "
            "the results. Continuing with the provided token results in an inconsistent list - "
            "objects that were "
            "created, modified, or deleted between the time the first chunk was returned and "
            "now may show up in the "
            "list."
        )
        rest = base64.urlsafe_b64encode(
            msgspec.json.encode({"v": "meta.k8s.io/v1", "rv": -1, "start": "/".join(start)})
        )
        error.extra_metadata = {"continue": rest.decode().rstrip("=")}
        return error

    # Watch -----------------------------------------------------------------------------------------------

    async def watch(self, call: Call) -> web.StreamResponse:
        form = negotiate(call.request.headers.get("Accept", ""))
        _check_watch_options(call)
        selection = self.selection(call)
        version = call.number("resourceVersion")
        timeout = call.number("timeoutSeconds")
        bookmarks = call.flag("allowWatchBookmarks")
        initial = call.query.get("sendInitialEvents")
        render = self._renderer(call.kind, form, include(call))
        inside: InsideStream | None = call.request.get(STREAM)
        watch = Watch(
            call.kind.store_key,
            call.namespace,
            selection.matches if selection else None,
            (call.kind.api_version, form, include(call)) if form.name != "table" else object(),
            render,
            alarm=self._hub.alarm if inside is not None and inside.patient else None,
        )
        response = web.StreamResponse() if inside is None else inside
        response.headers["Cache-Control"] = "no-cache, private"
        response.content_type = "application/json"
        for warning in call.warnings:
            response.headers.add("Warning", warning_value(warning))
        # From here to `add` nothing is awaited: no change can come between the past and the future.
        self._begin(call, watch, selection, version, initial, bookmarks, render)
        self._hub.add(watch)
        if call.request.transport is not None:
            watch.abort = call.request.transport.abort
        deadline = asyncio.get_running_loop().time() + (timeout or random.uniform(1800, 3600))
        chunks = self._chunks(call.kind, watch, deadline, bookmarks, form)
        if inside is not None:
            inside.chunks, inside.hear, inside.end = chunks, watch.hear, lambda: self._hub.remove(watch)
            return inside
        try:
            await response.prepare(call.request)
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        except ConnectionResetError:
            pass
        finally:
            self._hub.remove(watch)
        return response

    def _begin(
        self,
        call: Call,
        watch: Watch,
        selection: Selection,
        version: int | None,
        initial: str | None,
        bookmarks: bool,
        render: Callable[[str, Entry], bytes],
    ) -> None:
        store = self._store
        wants_state = initial == "true" or (initial is None and not version)
        if version and version > store.revision and initial == "true":
            raise too_large(version, store.revision)
        if wants_state:
            for entry in store.entries(watch.resource, watch.namespace):
                if not selection or selection.matches(entry):
                    watch.push(render(ADDED, entry))
            if initial == "true" and bookmarks:
                watch.push(bookmark(call.kind, store.revision, initial_end=True))
            watch.revision = store.revision
        elif version and (version < store.compacted or version in store.lost):
            error = expired(f"too old resource version: {version} ({store.compacted})")
            watch.push(msgspec.json.encode({"type": "ERROR", "object": error.status()}) + b"\n")
            watch.close()
        elif version:
            watch.revision = version
            for change in store.since(version):
                if change.new.key[0] == watch.resource:
                    watch.offer(change)
                    change.rendered = {}
        else:
            watch.revision = store.revision

    async def _chunks(
        self, kind: Kind, watch: Watch, deadline: float, bookmarks: bool, form: Form
    ) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        # Every minute, and shortly before the end, so that the client knows from where to go on.
        next_bookmark = min(loop.time() + BOOKMARK_EVERY, max(loop.time() + 1, deadline - 2))
        while True:
            now = loop.time()
            if now >= deadline:
                return
            chunk = await watch.take(max(0.0, min(deadline, next_bookmark) - now))
            if chunk:
                yield chunk
            elif watch.closed:
                return
            # A bookmark says that nothing before it is missing: what came during the write goes first.
            if loop.time() >= next_bookmark and not watch.behind and not watch.closed:
                next_bookmark = loop.time() + BOOKMARK_EVERY
                if next_bookmark > deadline - 2 > loop.time():
                    next_bookmark = deadline - 2
                if bookmarks and form.name != "table":
                    yield bookmark(kind, self._store.revision)

    def _renderer(self, kind: Kind, form: Form, included: str) -> Callable[[str, Entry], bytes]:
        if form.name == "table":
            return self._tables.watch_renderer(kind, form.version, included)
        if form.name == "metadata":
            return lambda type_, entry: (
                msgspec.json.encode({"type": type_, "object": partial(load(kind, entry), form.version)})
                + b"\n"
            )
        return lambda type_, entry: b'{"type":"%s","object":%s}\n' % (type_.encode(), self.plain(kind, entry))


def bookmark(kind: Kind, revision: int, *, initial_end: bool = False) -> bytes:
    metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    obj = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
    return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def include(call: Call) -> str:
    """What a Table's rows carry of their object."""
    asked = call.query.get("includeObject") or "Metadata"
    if asked not in ("None", "Metadata", "Object"):
        raise bad_request(f'unrecognized includeObject value: "{asked}"')
    return asked


def partial(obj: dict[str, Any], version: str = "v1") -> dict[str, Any]:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }


def too_large(asked: int, current: int) -> StatusError:
    return StatusError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    )


def encode_continue(revision: int, last: Entry) -> str:
    token = {"v": "meta.k8s.io/v1", "rv": revision, "start": f"{last.namespace}/{last.name}"}
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


class _Continue(msgspec.Struct):
    rv: int
    start: str
    v: str


def decode_continue(token: str) -> tuple[int, tuple[str, str]]:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        value = msgspec.json.decode(raw, type=_Continue)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        said = "invalid continue token: continue key is not valid: it is not one that this server has given"
        raise bad_request(said) from None
    namespace, _, name = value.start.partition("/")
    return value.rv, (namespace, name)


def _check_list_options(call: Call) -> None:
    query = call.query
    errors: list[FieldError] = []
    if match := query.get("resourceVersionMatch"):
        errors += _match_errors(call, match)
    if "sendInitialEvents" in query:
        errors.append(forbidden_value("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if errors:
        raise invalid("meta.k8s.io", "ListOptions", "", errors)


def _match_errors(call: Call, match: str) -> list[FieldError]:
    field, errors = "resourceVersionMatch", []
    version = call.query.get("resourceVersion")
    if not version:
        errors.append(
            forbidden_value(field, "resourceVersionMatch is forbidden unless resourceVersion is provided")
        )
    if call.query.get("continue"):
        errors.append(forbidden_value(field, "resourceVersionMatch is forbidden when continue is provided"))
    if match not in ("Exact", "NotOlderThan"):
        errors.append(not_supported(field, match, ["Exact", "NotOlderThan", ""]))
    if match == "Exact" and version == "0":
        errors.append(
            forbidden_value(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
        )
    return errors


def _check_watch_options(call: Call) -> None:
    query = call.query
    field, errors = "resourceVersionMatch", []
    match = query.get(field)
    if "sendInitialEvents" in query and match != "NotOlderThan":
        errors.append(
            forbidden_value(field, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        )
    if match:
        if "sendInitialEvents" not in query:
            errors.append(
                forbidden_value(
                    field, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
                )
            )
        if match != "NotOlderThan":
            errors.append(not_supported(field, match, ["NotOlderThan"]))
    if errors:
        raise invalid("meta.k8s.io", "ListOptions", "", errors)
