"""What the two processes are told by their environment: the chart sets it, and a person may at a desk."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hotvirt.api import names
from hotvirt.kube.config import SERVICE_ACCOUNT, ClientConfig, in_cluster, load_kubeconfig
from hotvirt.plan.platform import Platform
from hotvirt.plan.validate_cluster import validate_kubevirt

from .lifetimes import Lifetimes

OWN: Final = "own"
GIVEN: Final = "given"
Environment = Mapping[str, str]


class SettingsError(Exception):
    """The environment says something that cannot be; the message says what to write instead."""


@dataclass(frozen=True)
class ControllerSettings:
    identity: str
    platform: Platform
    kubevirt: dict[str, Any] = field(default_factory=dict)
    """The spec of the KubeVirt object where there is none yet: from then on it is the administrator's."""
    certificates: str = OWN
    certificates_folder: Path = Path("/etc/hotvirt/tls")
    address: str = ""
    """Where it listens; empty: every address of the Pod."""
    port: int = 8443
    health_port: int = 8080
    drain: float = 5.0
    lifetimes: Lifetimes = field(default_factory=Lifetimes)

    @classmethod
    def of(cls, environment: Environment) -> ControllerSettings:
        given = Given(environment)
        image = given.text("HOTVIRT_LAUNCHER_IMAGE", Platform().launcher_image)
        return cls(
            identity=given.text("POD_NAME", f"{socket.gethostname()}-{os.getpid()}"),
            platform=Platform(
                launcher_image=image,
                image_volumes=given.flag("HOTVIRT_IMAGE_VOLUMES", False),
                kvm_resource=names.KVM_RESOURCE,
                agent_leases=True,
            ),
            kubevirt=given.kubevirt_spec("HOTVIRT_KUBEVIRT_SPEC"),
            certificates=given.one_of("HOTVIRT_CERTIFICATES", (OWN, GIVEN)),
            certificates_folder=Path(given.text("HOTVIRT_CERTIFICATES_FOLDER", "/etc/hotvirt/tls")),
            address=given.text("HOTVIRT_ADDRESS", ""),
            port=given.number("HOTVIRT_PORT", 8443),
            health_port=given.number("HOTVIRT_HEALTH_PORT", 8080),
            drain=float(given.number("HOTVIRT_DRAIN_SECONDS", 5)),
        )


@dataclass(frozen=True)
class NodeSettings:
    node_name: str
    pod_ip: str
    pod: tuple[str, str] | None = None
    """Name and uid of the agent's own Pod."""
    address: str = ""
    """Where it listens; empty: every address of the Pod."""
    root: Path = Path("/var/lib/kubelet")
    hypervisor: str = "qemu"
    console_port: int = 8186
    health_port: int = 8081

    @classmethod
    def of(cls, environment: Environment) -> NodeSettings:
        given = Given(environment)
        return cls(
            node_name=given.required("NODE_NAME", "the name of this node, as the API has it"),
            pod_ip=given.required("POD_IP", "the address at which the controllers reach this agent"),
            pod=given.both("POD_NAME", "POD_UID"),
            address=given.text("HOTVIRT_ADDRESS", ""),
            root=Path(given.text("HOTVIRT_NODE_ROOT", "/var/lib/kubelet")),
            hypervisor=given.one_of("HOTVIRT_HYPERVISOR", ("qemu", "instant")),
            console_port=given.number("HOTVIRT_CONSOLE_PORT", 8186),
            health_port=given.number("HOTVIRT_HEALTH_PORT", 8081),
        )


@dataclass(frozen=True)
class Given:
    """The environment, read with the error messages that a person needs."""

    environment: Environment

    def text(self, name: str, default: str) -> str:
        return self.environment.get(name) or default

    def required(self, name: str, meaning: str) -> str:
        value = self.environment.get(name)
        if not value:
            raise SettingsError(f"The environment variable {name} is not set: it says {meaning}.")
        return value

    def both(self, one: str, other: str) -> tuple[str, str] | None:
        values = (self.environment.get(one) or "", self.environment.get(other) or "")
        return values if all(values) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.environment.get(name)
        if not value:
            return default
        if value not in ("true", "false"):
            raise SettingsError(f"{name} is {value!r}: write true or false.")
        return value == "true"

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """The first of them is the default."""
        value = self.environment.get(name) or allowed[0]
        if value not in allowed:
            raise SettingsError(f"{name} is {value!r}: write {' or '.join(allowed)}.")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.environment.get(name) or "{}")
        except ValueError as error:
            raise SettingsError(f"{name} is not JSON: {error}.") from None
        if not isinstance(value, dict):
            raise SettingsError(f"{name} is no JSON object: write one, like {{}}.")
        return value

    def kubevirt_spec(self, name: str) -> dict[str, Any]:
        """Checked here: when Hotvirt is installed nobody answers the webhook that would."""
        spec = self.mapping(name)
        causes = validate_kubevirt({"spec": spec})
        if causes:
            told = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
            raise SettingsError(f"{name} cannot be the spec of the KubeVirt object: {told}.")
        return spec

    def number(self, name: str, default: int) -> int:
        value = self.environment.get(name) or str(default)
        if not value.isdecimal() or int(value) > 65535:
            raise SettingsError(f"{name} is {value!r}: write a number from 0 to 65535.")
        return int(value)


def api_access() -> ClientConfig:
    """A Pod's service account where there is one, else KUBECONFIG: so a process can also be run by hand."""
    if (SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    return load_kubeconfig()
