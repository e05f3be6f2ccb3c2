"""Delete: grace, preconditions, finalizers, propagation, collections."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from . import protobuf
from .admit import Admit
from .body import content_type, decode_json, read_body
from .call import Call
from .errors import (
    FieldError,
    StatusError,
    bad_request,
    conflict,
    details_of,
    invalid,
    not_found,
    not_supported,
)
from .kinds import Kind
from .objects import clone
from .read import Reader
from .store import Store
from .strategies import Strategies
from .types import WrongType, conform, object_fields
from .write import Writer, gone, load

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"
_OPTIONS: Final = object_fields("meta.DeleteOptions")
Object = dict[str, Any]


class Deleter:
    def __init__(
        self, store: Store, admit: Admit, strategies: Strategies, writer: Writer, reader: Reader
    ) -> None:
        self._store = store
        self._admit = admit
        self._strategies = strategies
        self._writer = writer
        self._reader = reader

    async def delete(self, call: Call) -> tuple[Object, int]:
        return await self.delete_one(call, await self._options(call)), 200

    async def delete_collection(self, call: Call) -> Object:
        options = await self._options(call)
        selection = self._reader.selection(call)
        deleted: list[Object] = []
        for entry in list(self._store.entries(call.kind.store_key, call.namespace)):
            if not selection.matches(entry):
                continue
            one = Call(
                call.request,
                call.user,
                call.kind,
                entry.namespace,
                entry.name,
                "",
                "delete",
                warnings=call.warnings,
            )
            try:
                await self.delete_one(one, options)
            except StatusError as error:
                if error.code != 404:
                    raise
            last = load(call.kind, entry)
            if not call.kind.custom:
                del last["apiVersion"], last["kind"]
            deleted.append(last)
        return {
            "kind": call.kind.list_name,
            "apiVersion": call.kind.api_version,
            "metadata": {"resourceVersion": str(self._store.revision)},
            "items": deleted,
        }

    async def _options(self, call: Call) -> Object:
        data = await read_body(call)
        options: Object = {}
        if data:
            if content_type(call) == protobuf.CONTENT_TYPE:
                _, _, raw = protobuf.unwrap(data)
                options = protobuf.decode(_OPTIONS, raw)
            else:
                value, _ = decode_json(data)
                if not isinstance(value, dict):
                    raise bad_request("the body of a delete is DeleteOptions, an object")
                try:
                    options = conform(_OPTIONS, value, [])
                except WrongType as error:
                    raise bad_request(f"the DeleteOptions in the body cannot be read: {error}") from None
        query = call.query
        if not data:
            if (grace := call.number("gracePeriodSeconds")) is not None:
                options["gracePeriodSeconds"] = grace
            if "propagationPolicy" in query:
                options["propagationPolicy"] = query["propagationPolicy"]
            if "orphanDependents" in query:
                options["orphanDependents"] = call.flag("orphanDependents")
        if "dryRun" in query:
            options["dryRun"] = query.getall("dryRun")
        call.check_dry_run(options.get("dryRun") or [])
        policy = options.get("propagationPolicy")
        if policy not in (None, "Background", "Foreground", "Orphan"):
            errors = [
                not_supported("propagationPolicy", policy, ["Foreground", "Background", "Orphan", "nil"])
            ]
            raise invalid("meta.k8s.io", "DeleteOptions", "", errors)
        if policy and options.get("orphanDependents") is not None:
            said = 'Invalid value: "": orphanDependents and deletionPropagation cannot be both set'
            raise invalid(
                "meta.k8s.io",
                "DeleteOptions",
                "",
                [FieldError("propagationPolicy", "FieldValueInvalid", said)],
            )
        return options

    async def delete_one(self, call: Call, options: Object) -> Object:
        kind = call.kind
        strategy = self._strategies.of(kind)
        async with self._store.lock(call.key):
            entry = self._store.get(call.key)
            if entry is None:
                raise not_found(kind.group, kind.plural, call.name)
            old = load(kind, entry)
            _check_preconditions(kind, call.name, old, options.get("preconditions") or {})
            strategy.check_delete(old)
            await self._admit.validate(call, kind, None, old)
            new = clone(old)
            _propagate(new["metadata"], options)
            strategy.before_delete(new)
            grace = strategy.grace(old, options.get("gracePeriodSeconds"))
            self._mark(new["metadata"], old["metadata"], grace)
            if not strategy.has_grace:
                new["metadata"].pop("deletionGracePeriodSeconds", None)
            if gone(kind, new):
                if not options.get("dryRun"):
                    last = new if strategy.graceful else old
                    new = await self._writer.remove(call.key, kind, last, durable=call.durable)
                if strategy.returns_deleted:
                    return new
                return success(kind, call.name, old["metadata"]["uid"])
            strategy.prepare_delete(new)
            counts = strategy.has_grace and old["metadata"].get("generation")
            if counts and not old["metadata"].get("deletionTimestamp"):
                new["metadata"]["generation"] += 1
            if new != old and not options.get("dryRun"):
                new = await self._writer.put(call.key, kind, new, durable=call.durable)
            return new

    def _mark(self, new: Object, old: Object, grace: int) -> None:
        """The time by which the object should be gone; a second delete can only shorten it."""
        before = old.get("deletionGracePeriodSeconds")
        if old.get("deletionTimestamp"):
            if before is None or grace >= before:
                return
            asked_at = datetime.fromisoformat(old["deletionTimestamp"]) - timedelta(seconds=before)
            new["deletionTimestamp"] = _stamp(asked_at + timedelta(seconds=grace))
        else:
            new["deletionTimestamp"] = _stamp(datetime.now(UTC) + timedelta(seconds=grace))
        new["deletionGracePeriodSeconds"] = grace


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def success(kind: Kind, name: str, uid: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details_of(kind.group, kind.plural, name, uid=uid),
    }


def _check_preconditions(kind: Kind, name: str, old: Object, asked: Object) -> None:
    metadata = old["metadata"]
    for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        wanted, actual = asked.get(field), metadata.get(field)
        if wanted and wanted != actual:
            why = (
                f"the {label} in the precondition ({wanted}) does not match the {label} in record ({actual})"
            )
            happened = "deleted and then recreated" if field == "uid" else "modified"
            why += f". The object might have been {happened}"
            raise conflict(kind.group, kind.kind, name, why)


def _propagate(metadata: Object, options: Object) -> None:
    """The wish about dependents becomes a finalizer, which the garbage collector takes away again."""
    policy = options.get("propagationPolicy")
    if policy is None and options.get("orphanDependents") is not None:
        policy = "Orphan" if options["orphanDependents"] else "Background"
    finalizers = list(metadata.get("finalizers") or [])
    if policy is not None:
        finalizers = [one for one in finalizers if one not in (FOREGROUND, ORPHAN)]
        if policy == "Foreground":
            finalizers.append(FOREGROUND)
        elif policy == "Orphan":
            finalizers.append(ORPHAN)
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
