"""Pods: defaults, checks, and the rule of this machine that a Pod is one of Hotvirt's."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hotvirt.api import names

from .call import Call
from .errors import (
    FieldError,
    StatusError,
    duplicate_value,
    forbidden,
    forbidden_value,
    invalid_value,
    not_supported,
    required_value,
)
from .limits import check_limits, fill_from_limits
from .metadata import LABEL, LABEL_RULE
from .objects import clone
from .pod_resources import (
    all_containers,
    beyond_node,
    containers,
    only_sizes,
    qos_class,
    resize_errors,
    resource_errors,
)
from .quota import QuotaGate
from .store import Store
from .strategies import Strategy

Object = dict[str, Any]
LAUNCHER: Final = "hotvirt-launcher"
_VOLUMES: Final = frozenset(
    ["emptyDir", "image", "persistentVolumeClaim", "secret", "configMap", "downwardAPI"]
)
_ENDED: Final = ("Succeeded", "Failed")
_MAY_CHANGE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


class PodStrategy(Strategy):
    returns_deleted = True
    graceful = True

    def __init__(self, store: Store, quota: QuotaGate) -> None:
        self._store = store
        self._quota = quota

    def prepare_create(self, call: Call, obj: Object) -> None:
        fill_from_limits(self._store, obj)
        fill(obj)
        obj["status"] = {"phase": "Pending", "qosClass": qos_class(obj)}

    def validate_create(self, obj: Object) -> list[FieldError]:
        return _errors(obj)

    async def admit_create(self, call: Call, obj: Object) -> None:
        refuse_foreign(obj)
        check_limits(self._store, obj)
        self._quota.check(obj)

    def settled(self, obj: Object) -> None:
        self._quota.settled(obj)

    def own_part(self, call: Call, old: Object, new: Object) -> Object | None:
        return only_sizes(old, new) if call.subresource == "resize" else None

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        if call.subresource == "resize":
            for container in containers(new):
                _requests_from_limits(container)
        elif call.subresource == "status":
            status = new.setdefault("status", {})
            status.setdefault("qosClass", (old.get("status") or {}).get("qosClass") or qos_class(new))
            status.setdefault("phase", "Pending")
        else:
            fill(new)

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        if call.subresource == "status":
            return []
        if call.subresource == "resize":
            return _errors(new) + resize_errors(old, new)
        return _errors(new) + _immutable_errors(old, new)

    async def admit_update(self, call: Call, old: Object, new: Object) -> None:
        if call.subresource == "resize":
            if old["spec"] != new["spec"]:
                check_limits(self._store, new)
                self._fits_node(new)
                self._quota.check(new, old)
        elif call.subresource != "status":
            refuse_foreign(new)

    def _fits_node(self, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if not node:
            return
        name = pod["metadata"]["name"]
        entry = self._store.get(("nodes", "", node))
        if entry is None:
            raise forbidden("", "pods", name, f'node "{node}" not found')
        allocatable = (msgspec.json.decode(entry.data).get("status") or {}).get("allocatable") or {}
        if said := beyond_node(pod, allocatable):
            raise forbidden("", "pods", name, said, [{"reason": "NodeCapacity"}])

    def grace(self, obj: Object, asked: int | None) -> int:
        spec, status = obj["spec"], obj.get("status") or {}
        if not spec.get("nodeName") or status.get("phase") in _ENDED:
            return 0
        seconds = asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30)
        return 1 if seconds < 0 else int(seconds)


def fill(pod: Object) -> None:
    """The defaults that clients and the node rely on."""
    spec = pod.setdefault("spec", {})
    for name, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("enableServiceLinks", True),
        ("priority", 0),
        ("preemptionPolicy", "PreemptLowerPriority"),
    ):
        spec.setdefault(name, value)
    spec.setdefault("securityContext", {})
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for _, container in all_containers(pod):
        _fill_container(container)
    for volume in spec.get("volumes") or []:
        if volume.keys() <= {"name"}:
            volume["emptyDir"] = {}
        for name in ("secret", "configMap", "downwardAPI", "projected"):
            if name in volume:
                volume[name].setdefault("defaultMode", 420)
        if "image" in volume:
            volume["image"].setdefault("pullPolicy", _pull_policy(volume["image"].get("reference", "")))


def _pull_policy(image: str) -> str:
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if not digest and tag in ("", "latest") else "IfNotPresent"


def _fill_container(container: Object) -> None:
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image", "")))
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    _requests_from_limits(container)
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            for name, value in (
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ):
                container[probe].setdefault(name, value)


def _requests_from_limits(container: Object) -> None:
    resources = container.get("resources") or {}
    for name, amount in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, amount)


def _errors(pod: Object) -> list[FieldError]:
    spec, errors = pod["spec"], []
    if not spec.get("containers"):
        errors.append(required_value("spec.containers"))
    seen: set[str] = set()
    volumes = set()
    for index, volume in enumerate(spec.get("volumes") or []):
        name, path = volume.get("name", ""), f"spec.volumes[{index}]"
        if not name:
            errors.append(required_value(f"{path}.name"))
        elif not LABEL.match(name) or len(name) > 63:
            errors.append(invalid_value(f"{path}.name", name, LABEL_RULE))
        elif name in volumes:
            errors.append(duplicate_value(f"{path}.name", name))
        if len(volume) > 2:
            errors.append(forbidden_value(path, "may not specify more than 1 volume type"))
        volumes.add(name)
    for path, container in all_containers(pod):
        name = container.get("name", "")
        if not name:
            errors.append(required_value(f"{path}.name"))
        elif not LABEL.match(name) or len(name) > 63:
            errors.append(invalid_value(f"{path}.name", name, LABEL_RULE))
        elif name in seen:
            errors.append(duplicate_value(f"{path}.name", name))
        seen.add(name)
        if not container.get("image"):
            errors.append(required_value(f"{path}.image"))
        for index, mount in enumerate(container.get("volumeMounts") or []):
            if mount.get("name") not in volumes:
                field = f"{path}.volumeMounts[{index}].name"
                errors.append(
                    FieldError(field, "FieldValueNotFound", f'Not found: "{mount.get("name", "")}"')
                )
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        errors.append(
            not_supported("spec.restartPolicy", spec.get("restartPolicy"), ["Always", "OnFailure", "Never"])
        )
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        value = spec["terminationGracePeriodSeconds"]
        errors.append(
            invalid_value("spec.terminationGracePeriodSeconds", value, "must be greater than or equal to 0")
        )
    return errors + resource_errors(pod)


def _immutable_errors(old: Object, new: Object) -> list[FieldError]:
    def fixed(pod: Object) -> Object:
        spec: Object = clone(pod["spec"])
        for name in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
            spec.pop(name, None)
        for field in ("containers", "initContainers"):
            for container in spec.get(field) or []:
                container.pop("image", None)
        return spec

    if fixed(old) != fixed(new):
        return [forbidden_value("spec", _MAY_CHANGE)]
    before = old["spec"].get("tolerations") or []
    after = new["spec"].get("tolerations") or []
    if any(one not in after for one in before):
        return [
            forbidden_value(
                "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
            )
        ]
    return []


# A Pod here is a process of the host ---------------------------------------------------------------------


def refuse_foreign(pod: Object) -> None:
    problem = foreign(pod)
    if problem is not None:
        metadata = pod["metadata"]
        raise _foreign(metadata.get("name") or metadata.get("generateName", ""), problem)


def _foreign(name: str, problem: str) -> StatusError:
    return forbidden(
        "",
        "pods",
        name,
        "in one-machine mode a Pod is a process of this machine, and only Hotvirt's own Pods run here: "
        f"{problem}. Run other workloads on a Kubernetes cluster.",
    )


def foreign(pod: Object) -> str | None:
    """What about a Pod is not Hotvirt's; None when it is one of ours."""
    spec = pod["spec"]
    for path, container in all_containers(pod):
        image = container.get("image", "")
        name, _, tag = image.partition(":")
        if name != names.LAUNCHER_IMAGE or "/" in tag:
            return f"{path}.image is {image!r} and not {names.LAUNCHER_IMAGE}"
        if "ephemeral" in path:
            return f"{path} is an ephemeral container"
        for field, command in _commands(container):
            if command and command[0] != LAUNCHER:
                return f"{path}.{field} starts {command[0]!r} and not {LAUNCHER}"
        if (container.get("securityContext") or {}).get("privileged"):
            return f"{path} is privileged"
    for index, volume in enumerate(spec.get("volumes") or []):
        for kind in volume.keys() - {"name"}:
            if kind not in _VOLUMES:
                return f"spec.volumes[{index}] is of type {kind}"
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            return f"spec.{field} is set"
    return None


def _commands(container: Object) -> list[tuple[str, list[str]]]:
    found = [("command", container.get("command") or [])]
    for hook, handler in (container.get("lifecycle") or {}).items():
        if isinstance(handler, dict):
            found.append((f"lifecycle.{hook}", (handler.get("exec") or {}).get("command") or []))
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        command = ((container.get(probe) or {}).get("exec") or {}).get("command") or []
        found.append((f"{probe}.exec", command))
    return found
