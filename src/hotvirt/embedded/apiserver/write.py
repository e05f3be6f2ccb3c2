"""Create, update and patch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from hotvirt.kube.patch import (
    PatchError,
    PatchTestFailed,
    apply_json_patch,
    apply_merge_patch,
    apply_strategic_patch,
)

from . import metadata as meta
from .admit import Admit
from .body import PATCHES, Unfit, check_type, content_type, decode_json, normalise, read_body, read_object
from .call import Call
from .errors import (
    FieldError,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    internal,
    invalid,
    invalid_value,
    modified,
    not_found,
    out_of_space,
    unsupported_media_type,
)
from .kinds import Kind
from .objects import clone
from .store import Entry, Key, OutOfSpace, Store, WriteFailed
from .strategies import Strategies
from .validation import validate

LARGEST_PATCH = 10_000
Object = dict[str, Any]
Change = Callable[[Object], Object]


class Writer:
    def __init__(self, store: Store, admit: Admit, strategies: Strategies) -> None:
        self._store = store
        self._admit = admit
        self._strategies = strategies

    # Create ----------------------------------------------------------------------------------------------

    async def create(self, call: Call) -> tuple[Object, int]:
        kind = call.kind
        dry_run = call.dry_run
        obj, problems = await read_object(call, kind)
        check_type(kind, obj)
        obj = normalise(call, kind, obj, problems)
        return await self.create_object(call, obj, dry_run), 201

    async def create_object(self, call: Call, obj: Object, dry_run: bool) -> Object:
        kind, metadata = call.kind, obj["metadata"]
        self._match_namespace(call, metadata)
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        generate = not metadata.get("name") and metadata.get("generateName")
        if generate:
            metadata["name"] = meta.generated_name(metadata["generateName"])
        name = metadata.get("name") or ""
        if kind.namespaced:
            self._admit.namespace_exists(call, name)
        mutated = await self._admit.mutate(call, kind, obj, None)
        obj = self._again(call, obj, mutated)
        strategy = self._strategies.of(kind)
        meta.stamp_new(kind, obj["metadata"])
        if kind.has_status and not strategy.keeps_status:
            obj.pop("status", None)
        strategy.prepare_create(call, obj)
        errors = meta.validate(kind, obj["metadata"]) + self._schema_errors(kind, obj)
        errors += strategy.validate_create(obj)
        if errors:
            raise invalid(kind.group, kind.kind, obj["metadata"].get("name") or "", errors)
        if kind.custom:
            meta.warn_of_finalizers(call, obj["metadata"], {})
        await self._admit.validate(call, kind, obj, None)
        try:
            await strategy.admit_create(call, obj)
            return await self._put_new(call, obj, dry_run)
        finally:
            strategy.settled(obj)

    async def _put_new(self, call: Call, obj: Object, dry_run: bool) -> Object:
        kind, name = call.kind, obj["metadata"]["name"]
        call.name = name
        async with self._store.lock(call.key):
            existing = self._store.get(call.key)
            if existing is not None:
                deleting = bool(load(kind, existing)["metadata"].get("deletionTimestamp"))
                raise already_exists(kind.group, kind.plural, name, deleting=deleting)
            if dry_run:
                return obj
            return await self.put(call.key, kind, obj, durable=call.durable)

    def _match_namespace(self, call: Call, metadata: Object) -> None:
        given = metadata.get("namespace") or ""
        if not call.kind.namespaced:
            metadata.pop("namespace", None)
            if given:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        elif given and given != call.namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        else:
            metadata["namespace"] = call.namespace

    def _again(self, call: Call, before: Object, after: Object) -> Object:
        """What a hook returned goes through the schema again."""
        if after is before or after == before:
            return before
        return normalise(call, call.kind, clone(after), [])

    def _schema_errors(self, kind: Kind, obj: Object, old: Object | None = None) -> list[FieldError]:
        return validate(kind.schema, obj, old) if kind.schema is not None else []

    # Update and patch ------------------------------------------------------------------------------------

    async def update(self, call: Call) -> tuple[Object, int]:
        kind = call.kind
        dry_run = call.dry_run
        sent, problems = await read_object(call, kind)
        check_type(kind, sent)
        sent = normalise(call, kind, sent, problems)
        self._match_url(call, sent["metadata"])
        if self._strategies.of(kind).create_on_update and not call.subresource:
            missing = self._store.get(call.key) is None
            if missing and not sent["metadata"].get("resourceVersion"):
                return await self.create_object(call, sent, dry_run), 201
        return await self.change(call, lambda old: sent, dry_run=dry_run, sent_whole=True), 200

    def _match_url(self, call: Call, metadata: Object) -> None:
        name = metadata.get("name") or ""
        if name != call.name:
            shown = name or ""
            raise bad_request(
                f"the name of the object ({shown}) does not match the name on the URL ({call.name})"
                if shown
                else "name must be provided"
            )
        self._match_namespace(call, metadata)

    async def patch(self, call: Call) -> Object:
        kind, type_ = call.kind, content_type(call)
        dry_run = call.dry_run
        form = PATCHES.get(type_)
        accepted = ["application/json-patch+json", "application/merge-patch+json"]
        if not kind.custom:
            accepted.append("application/strategic-merge-patch+json")
        if form == "apply":
            raise unsupported_media_type(
                "the embedded API does not do server-side apply: use `kubectl apply` without --server-side, "
                f"or one of the patch types {', '.join(accepted)}"
            )
        if form is None:
            raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        if form == "strategic" and kind.custom:
            raise unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: "
                + ", ".join(accepted)
            )
        patch, duplicates = decode_json(await read_body(call))
        problems = [f'duplicate field "{path}"' for path in duplicates]
        if isinstance(patch, list) and len(patch) > LARGEST_PATCH:
            raise StatusError(
                413,
                "RequestEntityTooLarge",
                f"The allowed maximum operations in a JSON patch is {LARGEST_PATCH}, got {len(patch)}",
            )

        def apply(old: Object) -> Object:
            try:
                if form == "json":
                    return as_object(apply_json_patch(old, patch))
                if form == "merge":
                    if not isinstance(patch, dict):
                        raise bad_request("a merge patch is an object")
                    return as_object(apply_merge_patch(old, patch))
                return as_object(apply_strategic_patch(old, patch, kind.kind))
            except PatchTestFailed:
                raise _rejected() from None
            except PatchError as error:
                if form == "json" and isinstance(patch, list):
                    raise _rejected() from None
                raise bad_request(f"error decoding patch: {error}") from None

        return await self.change(call, apply, dry_run=dry_run, problems=problems)

    async def change(
        self,
        call: Call,
        apply: Change,
        *,
        dry_run: bool = False,
        sent_whole: bool = False,
        problems: list[str] | None = None,
    ) -> Object:
        """Read, change, check and write one object, or its status, with nobody in between."""
        kind = call.kind
        async with self._store.lock(call.key):
            entry = self._store.get(call.key)
            if entry is None:
                raise not_found(kind.group, kind.plural, call.name)
            old = load(kind, entry)
            new = apply(load(kind, entry))
            if not sent_whole:
                new = self._patched(call, old, new, problems)
                self._match_url(call, new["metadata"])
            return await self._replace(call, old, new, dry_run, sent_whole)

    def _patched(self, call: Call, old: Object, new: Object, problems: list[str] | None) -> Object:
        """The object that a patch makes has to be one; else the patch is invalid."""
        kind = call.kind
        try:
            check_type(kind, new)
            return normalise(call, kind, new, problems, old)
        except Unfit as error:
            if kind.custom:
                raise
            shown = msgspec.json.encode(new).decode()
            raise invalid("", "", "", [invalid_value("patch", shown, error.why)]) from None

    async def _replace(self, call: Call, old: Object, new: Object, dry_run: bool, sent_whole: bool) -> Object:
        kind = call.kind
        strategy = self._strategies.of(kind)
        self._check_version(kind, call.name, old, new, strategy.unconditional_update, sent_whole)
        new = self._only_own_part(call, old, new)
        mutated = await self._admit.mutate(call, kind, new, old)
        if mutated is not new and mutated != new:
            new = self._only_own_part(call, old, normalise(call, kind, clone(mutated), []))
        strategy.prepare_update(call, old, new)
        if counts_as_new_generation(kind, old, new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        errors = meta.validate(kind, new["metadata"]) + meta.finalizer_errors(
            old["metadata"], new["metadata"]
        )
        errors += self._schema_errors(kind, new, old) + strategy.validate_update(call, old, new)
        if errors:
            raise invalid(kind.group, kind.kind, call.name, errors)
        if kind.custom:
            meta.warn_of_finalizers(call, new["metadata"], old["metadata"])
        await self._admit.validate(call, kind, new, old)
        try:
            await strategy.admit_update(call, old, new)
            if new == old:
                return old
            if dry_run:
                return new
            if gone(kind, new):
                return await self.remove(call.key, kind, new, durable=call.durable)
            return await self.put(call.key, kind, new, durable=call.durable)
        finally:
            strategy.settled(new)

    def _check_version(
        self, kind: Kind, name: str, old: Object, new: Object, unconditional: bool, sent_whole: bool
    ) -> None:
        metadata = new["metadata"]
        version = metadata.get("resourceVersion") or ""
        if not version or version == "0":
            if sent_whole and not unconditional:
                why = "must be specified for an update"
                raise invalid(
                    kind.group, kind.plural, name, [invalid_value("metadata.resourceVersion", 0, why)]
                )
        elif not version.isdigit():
            raise invalid(
                kind.group,
                kind.kind,
                name,
                [
                    invalid_value(
                        "metadata.resourceVersion",
                        version,
                        f'strconv.ParseUint: parsing "{version}": invalid syntax',
                    )
                ],
            )
        elif version != old["metadata"]["resourceVersion"]:
            raise modified(kind.group, kind.plural, name)
        uid, actual = metadata.get("uid"), old["metadata"].get("uid")
        if uid and uid != actual:
            if not sent_whole:
                errors = [invalid_value("metadata.uid", uid, "field is immutable")]
                raise invalid(kind.group, kind.kind, name, errors)
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
            raise conflict(kind.group, kind.plural, name, why)

    def _only_own_part(self, call: Call, old: Object, new: Object) -> Object:
        """A status write changes the status alone, and every other write everything but the status."""
        own = self._strategies.of(call.kind).own_part(call, old, new)
        if own is not None:
            return own
        if call.subresource == "status":
            changed = clone(old)
            if not call.kind.custom:
                changed["metadata"] = new["metadata"]
                meta.keep_old(old["metadata"], changed["metadata"])
            if "status" in new:
                changed["status"] = new["status"]
            else:
                changed.pop("status", None)
            return changed
        meta.keep_old(old["metadata"], new["metadata"])
        if call.kind.has_status:
            if "status" in old:
                new["status"] = clone(old["status"])
            else:
                new.pop("status", None)
        return new

    # The store -------------------------------------------------------------------------------------------

    async def put(self, key: Key, kind: Kind, obj: Object, *, durable: bool = True) -> Object:
        return await self._write(key, kind, obj, delete=False, durable=durable)

    async def remove(self, key: Key, kind: Kind, obj: Object, *, durable: bool = True) -> Object:
        """Take the object away; what is returned is its last state."""
        return await self._write(key, kind, obj, delete=True, durable=durable)

    async def _write(self, key: Key, kind: Kind, obj: Object, *, delete: bool, durable: bool) -> Object:
        def make(revision: int) -> bytes:
            obj["metadata"]["resourceVersion"] = str(revision)
            stored = to_stored(kind, obj)
            # Always in this order: lists of built-in kinds leave the first two out by cutting the bytes.
            head = {
                "apiVersion": stored["apiVersion"],
                "kind": stored["kind"],
                "metadata": stored["metadata"],
            }
            return msgspec.json.encode(head | stored)

        try:
            await self._store.write(key, make, delete=delete, durable=durable)
        except OutOfSpace:
            raise out_of_space() from None
        except WriteFailed as error:
            said = f"the database cannot be written ({error}): look at the disk of the state folder"
            raise internal(said) from None
        return obj


def as_object(value: Any) -> Object:
    if not isinstance(value, dict):
        raise bad_request("the patch makes something else than an object of it")
    return value


def _rejected() -> StatusError:
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def load(kind: Kind, entry: Entry) -> Object:
    """A stored object, in the version of `kind`."""
    obj: Object = msgspec.json.decode(entry.data)
    if kind.from_stored is not None:
        return kind.from_stored(obj)
    if obj.get("apiVersion") != kind.api_version:
        obj["apiVersion"] = kind.api_version
    return obj


def to_stored(kind: Kind, obj: Object) -> Object:
    if kind.to_stored is not None:
        return kind.to_stored(obj)
    if kind.storage_version and kind.storage_version != kind.version:
        return obj | {"apiVersion": f"{kind.group}/{kind.storage_version}"}
    return obj


def counts_as_new_generation(kind: Kind, old: Object, new: Object) -> bool:
    """Only what the owner asks for counts: neither metadata nor status."""
    if not meta.counts_generation(kind):
        return False
    skipped = {"metadata", "apiVersion", "kind"}
    if kind.has_status:
        skipped.add("status")
    names = (old.keys() | new.keys()) - skipped
    return any(old.get(name) != new.get(name) for name in names)


def gone(kind: Kind, obj: Object) -> bool:
    """Is nothing left to wait for before a deleted object goes?"""
    metadata = obj["metadata"]
    if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
        return False
    if metadata.get("deletionGracePeriodSeconds"):
        return False
    return not (kind.plural == "namespaces" and (obj.get("spec") or {}).get("finalizers"))
