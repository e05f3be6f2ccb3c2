"""What can be asked of an object beside itself: scale, binding, eviction, resize, log, finalize."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web

from hotvirt.api.meta import now

from .body import PATCHES, content_type, decode_json, read_body, read_object
from .call import Call, Reply, json_reply
from .delete import Deleter
from .errors import StatusError, bad_request, conflict, invalid, invalid_value, not_found
from .jsonpath import JsonPath
from .kinds import Kind
from .read import Reader
from .selectors import selector_matches
from .store import Store
from .tokens import DEFAULT_SECONDS, LONGEST, SHORTEST, IssuedTokens
from .types import WrongType, conform, object_fields
from .write import Writer, load

Object = dict[str, Any]
_BINDING: Final = object_fields("core.Binding")
_EVICTION: Final = object_fields("policy.Eviction")
_TOKEN: Final = object_fields("authentication.TokenRequest")


@dataclass(frozen=True)
class LogOptions:
    """What `kubectl logs` can ask for."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since_seconds: int | None = None
    since_time: str | None = None
    limit_bytes: int | None = None


class NodeLogs(Protocol):
    """Who has the logs: the node."""

    def log(self, pod: str, container: str, options: Any) -> AsyncIterator[bytes]: ...


class Subresources:
    def __init__(
        self,
        store: Store,
        writer: Writer,
        deleter: Deleter,
        reader: Reader,
        tokens: IssuedTokens,
        node_logs: NodeLogs | None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._deleter = deleter
        self._reader = reader
        self._tokens = tokens
        self.node_logs = node_logs

    async def answer(self, call: Call) -> Reply | web.StreamResponse:
        name = call.subresource
        if name in ("resize", "finalize"):
            if call.verb == "get":
                return self._reader.get(call)
            if call.verb == "patch":
                return json_reply(await self._writer.patch(call))
            return json_reply(*await self._writer.update(call))
        if name == "scale":
            return await self._scale(call)
        if name == "log":
            return await self._log(call)
        if name == "binding":
            return await self._bind(call)
        if name == "eviction":
            return await self._evict(call)
        if name == "token":
            return await self._token(call)
        raise StatusError(
            501,
            "NotImplemented",
            f"{name} is not possible in one-machine mode: a Pod here is a process of this machine. "
            "For a VM use `hotvirt console`; its serial log is that of the container guest-console-log.",
        )

    def _stored(self, call: Call) -> Object:
        entry = self._store.get(call.key)
        if entry is None:
            raise not_found(call.kind.group, call.kind.plural, call.name)
        return load(call.kind, entry)

    # Log -------------------------------------------------------------------------------------------------

    async def _log(self, call: Call) -> web.StreamResponse:
        pod = self._stored(call)
        container = _log_container(call, pod)
        options = LogOptions(
            follow=call.flag("follow"),
            previous=call.flag("previous"),
            timestamps=call.flag("timestamps"),
            tail_lines=_at_least(call, "tailLines", 0),
            since_seconds=_at_least(call, "sinceSeconds", 1),
            since_time=call.query.get("sinceTime"),
            limit_bytes=_at_least(call, "limitBytes", 1),
        )
        if not pod["spec"].get("nodeName"):
            return web.Response(headers={"Content-Type": "text/plain"})
        if self.node_logs is None:
            raise StatusError(
                503, "ServiceUnavailable", "no node runs in this process: there are no logs to read"
            )
        chunks = self.node_logs.log(pod["metadata"]["uid"], container, options)
        response = web.StreamResponse(
            headers={"Content-Type": "text/plain", "Cache-Control": "no-cache, private"}
        )
        try:
            first = await anext(chunks, None)
        except ValueError as error:
            raise bad_request(str(error)) from None
        except LookupError as error:
            raise StatusError(404, "NotFound", str(error)) from None
        except FileNotFoundError:
            raise bad_request(
                f'container "{container}" in pod "{call.name}" is waiting to start: ContainerCreating'
            ) from None
        await response.prepare(call.request)
        if first is not None:
            await response.write(first)
            async for chunk in chunks:
                await response.write(chunk)
        await response.write_eof()
        return response

    # Binding and eviction --------------------------------------------------------------------------------

    async def _bind(self, call: Call) -> Reply:
        sent = await self._read(call, _BINDING, "Binding")
        target = (sent.get("target") or {}).get("name")
        if not target:
            errors = [invalid_value("target.name", "", "must name the node")]
            raise invalid("", "Binding", call.name, errors)

        def bind(pod: Object) -> Object:
            if pod["metadata"].get("deletionTimestamp"):
                why = f"pod {call.name} is being deleted, cannot be assigned to a host"
                raise conflict("", "pods/binding", call.name, why)
            if node := pod["spec"].get("nodeName"):
                raise conflict(
                    "", "pods/binding", call.name, f'pod {call.name} is already assigned to node "{node}"'
                )
            pod["spec"]["nodeName"] = target
            status = pod.setdefault("status", {})
            scheduled = {
                "type": "PodScheduled",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": now(),
            }
            rest = [one for one in status.get("conditions") or [] if one.get("type") != "PodScheduled"]
            status["conditions"] = [scheduled, *rest]
            return pod

        if not call.dry_run:
            await self._change(call, bind)
        return json_reply(_success(), 201)

    async def _change(self, call: Call, apply: Any) -> Object:
        """A change that only the server itself may make."""
        async with self._store.lock(call.key):
            obj = apply(self._stored(call))
            return await self._writer.put(call.key, call.kind, obj, durable=call.durable)

    async def _evict(self, call: Call) -> Reply:
        sent = await self._read(call, _EVICTION, "Eviction")
        pod = self._stored(call)
        options = dict(sent.get("deleteOptions") or {})
        if call.dry_run:
            options["dryRun"] = ["All"]
        phase = (pod.get("status") or {}).get("phase")
        if (
            phase in ("Running", "Pending")
            and pod["spec"].get("nodeName")
            and not pod["metadata"].get("deletionTimestamp")
        ):
            self._check_budgets(call, pod)
        await self._deleter.delete_one(call, options)
        return json_reply(_success(), 201)

    def _check_budgets(self, call: Call, pod: Object) -> None:
        for entry in self._store.entries("poddisruptionbudgets.policy", call.namespace):
            budget = msgspec.json.decode(entry.data)
            selector = (budget.get("spec") or {}).get("selector")
            if selector is None or not selector_matches(selector, pod["metadata"].get("labels") or {}):
                continue
            status = budget.get("status") or {}
            if status.get("disruptionsAllowed", 0) > 0:
                continue
            said = (
                f"The disruption budget {entry.name} needs {status.get('desiredHealthy', 0)} healthy pods "
                f"and has {status.get('currentHealthy', 0)} currently"
            )
            raise StatusError(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                {"causes": [{"reason": "DisruptionBudget", "message": said}]},
            )

    async def _read(self, call: Call, fields: Any, kind: str) -> Object:
        value, _ = await read_object(call, call.kind, fields)
        try:
            sent = conform(fields, value, [])
        except WrongType as error:
            raise bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {error}') from None
        name = (sent.get("metadata") or {}).get("name")
        if name and name != call.name:
            raise bad_request(f"name in URL does not match name in {kind} object")
        return sent

    async def _token(self, call: Call) -> Reply:
        account = self._stored(call)
        sent = await self._read(call, _TOKEN, "TokenRequest")
        spec = sent.setdefault("spec", {})
        seconds = spec.setdefault("expirationSeconds", DEFAULT_SECONDS)
        if not SHORTEST <= seconds <= LONGEST:
            why = f"may not specify a duration less than {SHORTEST // 60} minutes"
            if seconds > LONGEST:
                why = f"may not specify a duration larger than {LONGEST} seconds"
            errors = [invalid_value("spec.expirationSeconds", seconds, why)]
            raise invalid("authentication.k8s.io", "TokenRequest", "", errors)
        ends = datetime.now(UTC) + timedelta(seconds=seconds)
        token = "" if call.dry_run else self._tokens.issue(*call.key[1:], account["metadata"]["uid"], seconds)
        made: Object = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"} | sent
        made["metadata"] = {"name": call.name, "namespace": call.namespace, "creationTimestamp": now()}
        made["status"] = {"token": token, "expirationTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
        return json_reply(made, 201)

    # Scale -----------------------------------------------------------------------------------------------

    async def _scale(self, call: Call) -> Reply:
        kind = call.kind
        assert kind.scale is not None
        if call.verb == "get":
            return json_reply(_scale_of(kind, self._stored(call)))
        before = _scale_of(kind, self._stored(call))
        data, _ = decode_json(await read_body(call))
        if call.verb == "patch":
            from hotvirt.kube.patch import PatchError, apply_json_patch, apply_merge_patch

            form = PATCHES.get(content_type(call))
            try:
                data = apply_json_patch(before, data) if form == "json" else apply_merge_patch(before, data)
            except PatchError as error:
                raise bad_request(f"error decoding patch: {error}") from None
        if not isinstance(data, dict):
            raise bad_request("the body is a Scale, an object")
        wanted = (data.get("spec") or {}).get("replicas", 0)
        if not isinstance(wanted, int) or wanted < 0:
            why = "must be greater than or equal to 0"
            raise invalid("autoscaling", "Scale", call.name, [invalid_value("spec.replicas", wanted, why)])
        version = (data.get("metadata") or {}).get("resourceVersion")

        def apply(obj: Object) -> Object:
            if version:
                obj["metadata"]["resourceVersion"] = version
            _set(obj, kind.scale.spec if kind.scale else "", wanted)
            return obj

        dry_run = call.dry_run
        whole = Call(
            call.request, call.user, kind, call.namespace, call.name, "", call.verb, warnings=call.warnings
        )
        return json_reply(_scale_of(kind, await self._writer.change(whole, apply, dry_run=dry_run)))


def _scale_of(kind: Kind, obj: Object) -> Object:
    assert kind.scale is not None

    def number(path: str) -> int:
        found = JsonPath(path).find(obj) if path else []
        return found[0] if found and isinstance(found[0], int) else 0

    status: Object = {"replicas": number(kind.scale.status)}
    if kind.scale.selector and (found := JsonPath(kind.scale.selector).find(obj)):
        status["selector"] = found[0]
    metadata = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": number(kind.scale.spec)},
        "status": status,
    }


def _set(obj: Object, path: str, value: Any) -> None:
    *parents, last = path.lstrip(".").split(".")
    for name in parents:
        obj = obj.setdefault(name, {})
    obj[last] = value


def _success() -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _at_least(call: Call, name: str, least: int) -> int | None:
    value = call.number(name)
    if value is not None and value < least:
        why = "must be greater than or equal to 0" if least == 0 else "must be greater than 0"
        raise invalid("", "PodLogOptions", "", [invalid_value(name, value, why)])
    return value


def _log_container(call: Call, pod: Object) -> str:
    known = [
        one["name"]
        for field in ("containers", "initContainers", "ephemeralContainers")
        for one in pod["spec"].get(field) or []
    ]
    asked = call.query.get("container", "")
    if asked:
        if asked not in known:
            raise bad_request(f"container {asked} is not valid for pod {call.name}")
        return asked
    regular = [one["name"] for one in pod["spec"].get("containers") or []]
    if len(regular) != 1:
        choices = f"[{' '.join(regular)}]"
        raise bad_request(f"a container name must be specified for pod {call.name}, choose one of: {choices}")
    return str(regular[0])
