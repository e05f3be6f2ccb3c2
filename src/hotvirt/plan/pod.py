"""The launcher Pod of a VMI: the table in `docs/architecture.md`, as one pure function.

Labels of the VMI reach the Pod, so that Services and network policies select it; of the domains that mean
something to Kubernetes or to Hotvirt only those named here do: a tenant cannot pose as another VM's Pod.
Annotations reach it only by name.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from hotvirt.api import codec, names
from hotvirt.api.core import PersistentVolumeClaim
from hotvirt.api.kubevirt import VirtualMachineInstance, VMISpec, Volume
from hotvirt.api.meta import owner_reference
from hotvirt.api.pods import Pod
from hotvirt.api.quantity import Quantity
from hotvirt.plan import machine
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.memory import overhead
from hotvirt.plan.platform import EMBEDDED, Platform
from hotvirt.plan.resources import Resources, pod_resources
from hotvirt.plan.side import (
    DISK_FOLDER,
    TOOLS_VOLUME,
    Copy,
    console_log_resources,
    container_security,
    image_path,
    init_containers,
)

RUN_DIR: Final = "/var/run/hotvirt"
SCRATCH_DIR: Final = "/var/run/hotvirt-scratch"
IMAGES_DIR: Final = "/var/run/hotvirt-images"
CLAIMS_DIR: Final = "/var/run/hotvirt-claims"
SECRETS_DIR: Final = "/var/run/hotvirt-secrets"
MACHINE_VARIABLE: Final = "HOTVIRT_MACHINE"
UNPAUSED_GATE: Final = "kubevirt.io/virtual-machine-unpaused"

DEFAULT_GRACE: Final = 30
GRACE_RESERVE: Final = 2
"""Seconds that the launcher has for itself after the guest's time is over."""
LAUNCHER_UID: Final = 107
LABEL_MAX: Final = 63
NAME_MAX: Final = 253

RESERVED_DOMAINS: Final = ("kubernetes.io", "k8s.io", "kubevirt.io", "hotvirt.io")
PASSED_LABELS: Final = frozenset(
    {
        "kubevirt.io/domain",
        "kubevirt.io/size",
        "kubevirt.io/os",
        "kubevirt.io/flavor",
        "kubevirt.io/workload",
        "kubevirt.io/vm",
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/version",
        "app.kubernetes.io/component",
        "app.kubernetes.io/part-of",
        "app.kubernetes.io/managed-by",
    }
)


def pod_name(vmi: VirtualMachineInstance) -> str:
    """The same for every try, so that the Pod of a VMI is never made twice."""
    suffix = _digest(vmi.metadata.uid)
    return f"virt-launcher-{vmi.metadata.name}"[: NAME_MAX - len(suffix) - 1].rstrip("-.") + f"-{suffix}"


def grace_period(spec: VMISpec) -> int:
    """Seconds that the guest has between the power button and the end."""
    given = spec.termination_grace_period_seconds
    return DEFAULT_GRACE if given is None else max(0, given)


def pod_grace_period(spec: VMISpec) -> int:
    """Seconds that the Pod has. Without any grace for the guest: one, as zero would not wait for the node."""
    guest = grace_period(spec)
    return guest + GRACE_RESERVE if guest else 1


def pod_labels(vmi: VirtualMachineInstance) -> dict[str, str]:
    launcher, value = names.LABEL_LAUNCHER
    name = label_value(vmi.metadata.name)
    return {key: text for key, text in vmi.metadata.labels.items() if _is_passed(key)} | {
        launcher: value,
        names.LABEL_CREATED_BY: vmi.metadata.uid,
        names.LABEL_VM_NAME: name,
        names.LABEL_VMI_ID: name,
    }


def _is_passed(label: str) -> bool:
    domain, slash, _ = label.partition("/")
    if label == names.LABEL_LAUNCHER[0]:
        return False
    if not slash or label in PASSED_LABELS:
        return True
    return not any(domain == reserved or domain.endswith(f".{reserved}") for reserved in RESERVED_DOMAINS)


def label_value(name: str) -> str:
    """A name as the value of a label: long ones are cut and told apart by a digest."""
    if len(name) <= LABEL_MAX:
        return name
    suffix = _digest(name)
    return f"{name[: LABEL_MAX - len(suffix) - 1].rstrip('-.')}-{suffix}"


def machine_in(pod: Pod) -> machine.Machine | None:
    """The machine that a Pod was made for; None where it does not say so in words of this version."""
    for container in pod.spec.containers:
        for variable in container.env:
            if (container.name, variable.name) == (names.CONTAINER_COMPUTE, MACHINE_VARIABLE):
                with contextlib.suppress(msgspec.MsgspecError):
                    return machine.from_json(variable.value.replace("$$", "$"))
    return None


def launcher_pod(
    vmi: VirtualMachineInstance,
    config: ClusterConfig,
    claims: Mapping[str, PersistentVolumeClaim],
    limited: Collection[str] = (),
    platform: Platform = EMBEDDED,
) -> dict[str, Any]:
    """The Pod, ready to be created. Raises machine.MachineError.

    `claims` has the VMI's claims by name, `limited` what must have a limit (`resources.demanded_limits`).
    """
    spec = vmi.spec
    built = machine.machine_for(vmi)
    storage = _Storage(spec, claims, platform.image_volumes)
    image, pull_policy = platform.launcher_image, config.image_pull_policy
    annotations: dict[str, str] = {
        key: vmi.metadata.annotations[key] for key in names.POD_ANNOTATIONS if key in vmi.metadata.annotations
    }
    annotations |= {
        names.ANNOTATION_DOMAIN: vmi.metadata.name,
        names.ANNOTATION_MEMORY_OVERHEAD: str(overhead(spec, config).value),
        "kubectl.kubernetes.io/default-container": names.CONTAINER_COMPUTE,
    }
    resources = pod_resources(spec, config, limited)
    own_limits = resources["limits"].keys() - pod_resources(spec, config)["limits"].keys()
    if own_limits:
        annotations[names.ANNOTATION_LIMITED] = ",".join(sorted(own_limits))
    device = "" if config.use_emulation else platform.kvm_resource
    pod_spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": pod_grace_period(spec),
        "hostname": built.hostname,
        "subdomain": spec.subdomain,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": LAUNCHER_UID,
            "runAsGroup": LAUNCHER_UID,
            "fsGroup": LAUNCHER_UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "readinessGates": [{"conditionType": UNPAUSED_GATE}],
        "nodeSelector": dict(spec.node_selector),
        "affinity": spec.affinity,
        "tolerations": list(spec.tolerations),
        "schedulerName": spec.scheduler_name,
        "priorityClassName": spec.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in sorted(storage.pull_secrets)],
        "initContainers": init_containers(storage.copies, image, pull_policy, resources),
        "containers": [
            {
                "name": names.CONTAINER_COMPUTE,
                "image": image,
                "imagePullPolicy": pull_policy,
                "command": ["hotvirt-launcher", "run"],
                "env": [
                    # The kubelet expands $(NAME) in values: a dollar of the user's is written twice.
                    {"name": MACHINE_VARIABLE, "value": machine.to_json(built).replace("$", "$$")},
                ],
                "resources": codec.builtins(_with_device(resources, device)),
                "volumeMounts": storage.mounts,
                "volumeDevices": storage.devices,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "lifecycle": {"preStop": {"exec": {"command": ["hotvirt-launcher", "stop"]}}},
                "securityContext": container_security(),
            },
            {
                "name": names.CONTAINER_CONSOLE_LOG,
                "image": image,
                "imagePullPolicy": pull_policy,
                "command": ["hotvirt-launcher", "console-log"],
                "resources": console_log_resources(resources),
                "volumeMounts": [{"name": "run", "mountPath": RUN_DIR}],
                "securityContext": container_security(),
            },
        ],
        "volumes": storage.volumes,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(vmi),
            "namespace": vmi.metadata.namespace,
            "labels": pod_labels(vmi),
            "annotations": annotations,
            "ownerReferences": [owner_reference(vmi)],
        },
        "spec": _without_empty(pod_spec)
        | {"containers": [_without_empty(container) for container in pod_spec["containers"]]},
    }


class _Storage:
    """What the Pod's volumes section and the mounts of `compute` hold."""

    def __init__(
        self, spec: VMISpec, claims: Mapping[str, PersistentVolumeClaim], image_volumes: bool
    ) -> None:
        self._claims = claims
        self._image_volumes = image_volumes
        self.copies: list[Copy] = []
        self.volumes: list[dict[str, Any]] = []
        self.mounts: list[dict[str, Any]] = []
        self.devices: list[dict[str, Any]] = []
        self.pull_secrets: set[str] = set()
        self._mount("run", {"emptyDir": {}}, RUN_DIR)
        self._mount("scratch", {"emptyDir": {}}, SCRATCH_DIR)
        kernel = spec.domain.firmware and spec.domain.firmware.kernel_boot
        if kernel and kernel.container:
            self._image(
                "kernel",
                f"{IMAGES_DIR}/kernel",
                kernel.container.image,
                kernel.container.image_pull_policy,
                kernel.container.image_pull_secret,
                [kernel.container.kernel_path, kernel.container.initrd_path],
            )
        for volume in spec.volumes:
            self._add(volume)
        if self.copies:
            self.volumes.append({"name": TOOLS_VOLUME, "emptyDir": {}})

    def _add(self, volume: Volume) -> None:
        if volume.container_disk:
            disk = volume.container_disk
            where = f"{IMAGES_DIR}/{volume.name}"
            self._image(
                label_value(f"disk-{volume.name}"),
                where,
                disk.image,
                disk.image_pull_policy,
                disk.image_pull_secret,
                [disk.path or DISK_FOLDER],
            )
        elif volume.claim_name:
            self._claim(volume)
        elif volume.cloud_init_no_cloud:
            cloud_init = volume.cloud_init_no_cloud
            where = f"{SECRETS_DIR}/{volume.name}"
            if cloud_init.user_data_secret_ref:
                self._secret(
                    f"secret-{volume.name}", cloud_init.user_data_secret_ref.name, f"{where}/userdata"
                )
            if cloud_init.network_data_secret_ref:
                self._secret(
                    f"secret-net-{volume.name}",
                    cloud_init.network_data_secret_ref.name,
                    f"{where}/networkdata",
                )

    def _image(
        self, name: str, path: str, reference: str, pull_policy: str, pull_secret: str, wanted: list[str]
    ) -> None:
        """An image's files below `path`: all of it where it can be mounted, else what is `wanted` of it."""
        if pull_secret:
            self.pull_secrets.add(pull_secret)
        if self._image_volumes:
            source = {"image": _without_empty({"reference": reference, "pullPolicy": pull_policy})}
        else:
            source = {"emptyDir": {}}
            paths = tuple(image_path(each) for each in wanted if each)
            self.copies.append(Copy(name, path, reference, pull_policy, paths))
        self._mount(name, source, path, read_only=True)

    def _claim(self, volume: Volume) -> None:
        name, path = label_value(f"claim-{volume.name}"), f"{CLAIMS_DIR}/{volume.name}"
        read_only = bool(volume.persistent_volume_claim and volume.persistent_volume_claim.read_only)
        source: dict[str, Any] = {"claimName": volume.claim_name}
        if read_only:
            source["readOnly"] = True
        claim = self._claims.get(volume.claim_name)
        if claim is not None and claim.spec.volume_mode == "Block":
            self.volumes.append({"name": name, "persistentVolumeClaim": source})
            self.devices.append({"name": name, "devicePath": path})
        else:
            self._mount(name, {"persistentVolumeClaim": source}, path, read_only=read_only)

    def _secret(self, name: str, secret: str, path: str) -> None:
        self._mount(label_value(name), {"secret": {"secretName": secret}}, path, read_only=True)

    def _mount(self, name: str, source: dict[str, Any], path: str, *, read_only: bool = False) -> None:
        self.volumes.append({"name": name, **source})
        mount: dict[str, Any] = {"name": name, "mountPath": path}
        if read_only:
            mount["readOnly"] = True
        self.mounts.append(mount)


def _with_device(resources: Resources, device: str) -> Resources:
    one = {device: Quantity(1)} if device else {}
    return {key: amounts | one for key, amounts in resources.items()}


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None and value not in ("", {}, [])}


def _digest(text: str) -> str:
    """Five characters that may stand at the end of a name."""
    alphabet = "bcdfghjklmnpqrstvwxz2456789"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    digits = []
    for _ in range(5):
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    return "".join(digits)
