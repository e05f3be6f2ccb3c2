"""The sizes of a Pod: its QoS class, what it asks for in all, and what a resize may change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from hotvirt.api.quantity import Quantity

from .errors import FieldError, forbidden_value, invalid_value
from .objects import clone

Object = dict[str, Any]
COMPUTE: Final = ("cpu", "memory")


def containers(pod: Object, field: str = "containers") -> list[Object]:
    return (pod.get("spec") or {}).get(field) or []


def all_containers(pod: Object) -> Iterator[tuple[str, Object]]:
    """Every container with its path."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(containers(pod, field)):
            yield f"spec.{field}[{index}]", container


def _amounts(container: Object, what: str) -> dict[str, Quantity]:
    found = (container.get("resources") or {}).get(what) or {}
    return {name: Quantity(str(amount)) for name, amount in found.items()}


def qos_class(pod: Object) -> str:
    """Guaranteed, Burstable or BestEffort, by cpu and memory of all containers."""
    guaranteed, anything = True, False
    for field in ("containers", "initContainers"):
        for container in containers(pod, field):
            requests = {
                name: one for name, one in _amounts(container, "requests").items() if name in COMPUTE and one
            }
            limits = {
                name: one for name, one in _amounts(container, "limits").items() if name in COMPUTE and one
            }
            anything = anything or bool(requests or limits)
            if set(limits) != set(COMPUTE) or any(
                requests.get(name, limits[name]) != limits[name] for name in limits
            ):
                guaranteed = False
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def pod_requests(pod: Object) -> dict[str, Quantity]:
    """What the scheduler counts: the containers together, or the largest init container."""
    return _pod_total(pod, "requests")


def pod_limits(pod: Object) -> dict[str, Quantity]:
    return _pod_total(pod, "limits")


def _pod_total(pod: Object, what: str) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    sidecars: dict[str, Quantity] = {}
    for container in containers(pod):
        _add(total, _amounts(container, what))
    largest: dict[str, Quantity] = {}
    for container in containers(pod, "initContainers"):
        requests = _amounts(container, what)
        if container.get("restartPolicy") == "Always":
            _add(total, requests)
            _add(sidecars, requests)
            requests = dict(sidecars)
        else:
            requests = {name: amount + sidecars.get(name, Quantity(0)) for name, amount in requests.items()}
        for name, amount in requests.items():
            if name not in largest or amount > largest[name]:
                largest[name] = amount
    for name, amount in largest.items():
        if name not in total or amount > total[name]:
            total[name] = amount
    _add(
        total,
        {name: Quantity(str(one)) for name, one in ((pod.get("spec") or {}).get("overhead") or {}).items()},
    )
    return total


def _add(total: dict[str, Quantity], more: dict[str, Quantity]) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def resource_errors(pod: Object) -> list[FieldError]:
    errors: list[FieldError] = []
    for path, container in all_containers(pod):
        limits = _amounts(container, "limits")
        for kind in ("requests", "limits"):
            for name, amount in _amounts(container, kind).items():
                where = f"{path}.resources.{kind}"
                if amount < Quantity(0):
                    errors.append(
                        invalid_value(f"{where}[{name}]", str(amount), "must be greater than or equal to 0")
                    )
                elif kind == "requests" and name in limits and amount > limits[name]:
                    said = f"must be less than or equal to {name} limit of {limits[name]}"
                    errors.append(invalid_value(where, str(amount), said))
    return errors


# Resize --------------------------------------------------------------------------------------------------


def only_sizes(old: Object, new: Object) -> Object:
    """`old` with the sizes that `new` asks for; everything else of the request is left out."""
    changed = clone(old)
    for field in ("containers", "initContainers"):
        before, after = containers(old, field), containers(new, field)
        if [one.get("name") for one in before] != [one.get("name") for one in after]:
            changed["spec"][field] = after
            continue
        for container, asked in zip(containers(changed, field), after, strict=True):
            for name in ("resources", "resizePolicy"):
                if name in asked:
                    container[name] = asked[name]
                else:
                    container.pop(name, None)
    return changed


def resize_errors(old: Object, new: Object) -> list[FieldError]:
    errors = _order_errors(old, new)
    if errors:
        return errors
    if qos_class(old) != qos_class(new):
        shown = (new.get("status") or {}).get("qosClass", "")
        errors.append(invalid_value("spec", shown, "Pod QOS Class may not change as a result of resizing"))
    if not _reports_sizes(old):
        errors.append(forbidden_value("spec", "Pod running on node without support for resize"))
    for field in ("initContainers", "containers"):
        for index, (before, after) in enumerate(
            zip(containers(old, field), containers(new, field), strict=True)
        ):
            errors += _container_errors(before, after, f"spec.{field}[{index}].resources")
            if _without_sizes(before) != _without_sizes(after):
                errors.append(forbidden_value("spec", "only cpu and memory resources are mutable"))
    return errors


def _order_errors(old: Object, new: Object) -> list[FieldError]:
    errors: list[FieldError] = []
    for field in ("containers", "initContainers"):
        before, after = containers(old, field), containers(new, field)
        if len(before) != len(after):
            errors.append(forbidden_value(f"spec.{field}", f"{field} may not be added or removed on resize"))
            continue
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            if one.get("name") != other.get("name"):
                path = f"spec.{field}[{index}].name"
                errors.append(forbidden_value(path, f"{field} may not be renamed or reordered on resize"))
    return errors


def _container_errors(before: Object, after: Object, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for kind in ("requests", "limits"):
        if _amounts(before, kind).keys() - _amounts(after, kind).keys():
            errors.append(forbidden_value(f"{path}.{kind}", f"resource {kind} cannot be removed"))
    return errors


def _without_sizes(container: Object) -> Object:
    rest = clone(container)
    resources = rest.get("resources") or {}
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) or {}
        for name in COMPUTE:
            amounts.pop(name, None)
        if not amounts:
            resources.pop(kind, None)
    rest["resources"] = resources
    return rest


def _reports_sizes(pod: Object) -> bool:
    """A node that does not report the sizes of running containers cannot change them either."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        if (status.get("state") or {}).get("running") is not None:
            return status.get("resources") is not None
    return True


def beyond_node(pod: Object, allocatable: Object) -> str | None:
    """Why the node can never hold the Pod, in kube-apiserver's words."""
    requests = pod_requests(pod)
    too_much = []
    for name, unit in (("cpu", "milli"), ("memory", "value")):
        asked, has = requests.get(name, Quantity(0)), Quantity(str(allocatable.get(name, "0")))
        if asked > has:
            too_much.append(f"{name}, requested: {getattr(asked, unit)}, allocatable: {getattr(has, unit)}")
    if not too_much:
        return None
    return f"node didn't have enough allocatable resources: {'; '.join(too_much)}"
