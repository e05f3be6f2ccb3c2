"""From a container of a Pod to a command of this machine.

Only Hotvirt's own Pods run here: the launcher image means the installed hotvirt. Variables are expanded as
the kubelet does: `$(NAME)` is replaced where NAME is known, `$$` is a dollar sign.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotvirt.api import names
from hotvirt.api.pods import Container, Pod

from .runtime import Launch, PodLaunch

LAUNCHER = "hotvirt-launcher"
INSTALLED_LAUNCHER = (sys.executable, "-m", "hotvirt.hypervisor.launcher")
ROOT_VARIABLE = "HOTVIRT_CONTAINER_ROOT"


class LaunchError(ValueError):
    """This container cannot be run here; `reason` is the kubelet's word for it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def why_not_ours(pod: Pod) -> str:
    """Empty for a Pod of Hotvirt's. A Pod here is a process of the host, so no other may run."""
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        repository = container.image.partition("@")[0]
        head, _, last = repository.rpartition("/")
        repository = f"{head}/{last.partition(':')[0]}"
        if repository != names.LAUNCHER_IMAGE:
            return f"container {container.name} has image {container.image!r}, not {names.LAUNCHER_IMAGE}"
        if container.command[:1] != (LAUNCHER,):
            return f"container {container.name} does not run {LAUNCHER}"
    if pod.spec.restart_policy not in ("", "Never"):
        return f"its restartPolicy is {pod.spec.restart_policy}, and only Never is supported"
    return ""


def pod_launch(pod: Pod, folder: Path, fields: Fields) -> PodLaunch:
    return PodLaunch(
        containers=[launch(container, folder, fields) for container in pod.spec.containers],
        init_containers=[launch(container, folder, fields) for container in pod.spec.init_containers],
    )


def launch(container: Container, folder: Path, fields: Fields) -> Launch:
    root = container_root(folder, container.name)
    env = environment(container, fields) | {ROOT_VARIABLE: str(root)}
    command = [expand(word, env) for word in (*container.command, *container.args)]
    return Launch(container.name, _program(command, fields), env, _working_dir(container, root))


def pre_stop(container: Container, folder: Path, fields: Fields) -> Launch | None:
    handler = container.lifecycle.pre_stop if container.lifecycle else None
    if handler is None or handler.exec is None or not handler.exec.command:
        return None
    root = container_root(folder, container.name)
    env = environment(container, fields) | {ROOT_VARIABLE: str(root)}
    return Launch(
        container.name, _program(list(handler.exec.command), fields), env, _working_dir(container, root)
    )


def container_root(folder: Path, container: str) -> Path:
    """The folder of links that stands for the container's mounts."""
    return folder / "rootfs" / container


def _program(command: list[str], fields: Fields) -> list[str]:
    return [*fields.launcher, *command[1:]] if command[:1] == [LAUNCHER] else command


def _working_dir(container: Container, root: Path) -> str:
    if not container.working_dir:
        return "/"
    inside = root / container.working_dir.lstrip("/")
    return str(inside if inside.exists() else container.working_dir)


class Fields:
    """What `fieldRef` may name, and which program stands for the launcher."""

    def __init__(
        self, pod: Pod, address: str, host_address: str, launcher: Sequence[str] = INSTALLED_LAUNCHER
    ) -> None:
        self.pod = pod
        self.launcher = launcher
        self._fields = {
            "metadata.name": pod.metadata.name,
            "metadata.namespace": pod.metadata.namespace,
            "metadata.uid": pod.metadata.uid,
            "spec.nodeName": pod.spec.node_name,
            "spec.serviceAccountName": pod.spec.service_account_name,
            "status.podIP": address,
            "status.podIPs": address,
            "status.hostIP": host_address,
        }

    def value(self, path: str) -> str:
        for prefix, mapping in (
            ("metadata.labels['", self.pod.metadata.labels),
            ("metadata.annotations['", self.pod.metadata.annotations),
        ):
            if path.startswith(prefix) and path.endswith("']"):
                return mapping.get(path[len(prefix) : -2], "")
        if path not in self._fields:
            raise LaunchError("CreateContainerConfigError", f"fieldRef {path!r} is not supported here")
        return self._fields[path]


def environment(container: Container, fields: Fields) -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    env = {
        "PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "HOSTNAME": fields.pod.spec.hostname or fields.pod.metadata.name,
    }
    for variable in container.env:
        source = variable.value_from
        if source is None:
            env[variable.name] = expand(variable.value, env)
        elif "fieldRef" in source:
            env[variable.name] = fields.value(str(source["fieldRef"].get("fieldPath", "")))
        else:
            kind = next(iter(source), "nothing")
            raise LaunchError(
                "CreateContainerConfigError",
                f"variable {variable.name}: valueFrom {kind} is not supported here",
            )
    return env


def expand(text: str, known: Mapping[str, str]) -> str:
    """Kubernetes' own expansion: what is not known stays as it is written."""
    if "$" not in text:
        return text
    parts = []
    at = 0
    while (dollar := text.find("$", at)) >= 0 and dollar + 1 < len(text):
        parts.append(text[at:dollar])
        following = text[dollar + 1]
        end = text.find(")", dollar) if following == "(" else -1
        if following == "$":
            parts.append("$")
            at = dollar + 2
        elif end >= 0:
            name = text[dollar + 2 : end]
            parts.append(known.get(name, text[dollar : end + 1]))
            at = end + 1
        else:
            parts.append(text[dollar : dollar + 2])
            at = dollar + 2
    parts.append(text[at:])
    return "".join(parts)
