"""Checks of what a machine is made of: disks with their volumes, interfaces with their networks."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final

from hotvirt.api.domain import Disk, Interface
from hotvirt.api.kubevirt import VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.api.volumes import CloudInitNoCloud, Volume
from hotvirt.plan.causes import Causes
from hotvirt.plan.check_machine import check_image_path

SOURCES: Final = ("containerDisk", "persistentVolumeClaim", "dataVolume", "cloudInitNoCloud", "emptyDisk")
# What KubeVirt has and Hotvirt has not, and what to use instead.
REFUSED_SOURCES: Final = {
    "hostDisk": "a persistentVolumeClaim (a machine never opens a path of its node)",
    "cloudInitConfigDrive": "cloudInitNoCloud",
    "configMap": "cloudInitNoCloud with a secret",
    "secret": "cloudInitNoCloud with a secret",
    "serviceAccount": "cloudInitNoCloud with a secret that holds a token",
    "downwardAPI": "cloudInitNoCloud",
    "downwardMetrics": "the metrics of the node",
    "ephemeral": "a containerDisk, which is copy-on-write too",
    "sysprep": "cloudInitNoCloud",
    "memoryDump": "a persistentVolumeClaim of its own",
    "containerPath": "a containerDisk",
}
KINDS: Final = ("disk", "cdrom", "lun")
BUSES: Final = {"disk": ("virtio", "scsi", "sata"), "cdrom": ("sata", "scsi"), "lun": ("scsi",)}
CACHES: Final = ("none", "writethrough", "writeback", "directsync")
IO_MODES: Final = ("native", "threads", "default")
MODELS: Final = ("virtio", "e1000", "e1000e", "rtl8139")
REFUSED_BINDINGS: Final = ("bridge", "sriov", "slirp", "macvtap", "passt", "passtBinding", "binding")
PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
MOST_SERIAL: Final = 256
# The machine's description travels in one environment variable, which has at most 128 KiB.
MOST_INLINE_DATA: Final = 64 * 1024
_SERIAL: Final = re.compile(r"[A-Za-z0-9_.+-]+\Z", re.ASCII)
_MAC: Final = re.compile(r"[0-9a-f]{2}([:-])[0-9a-f]{2}(\1[0-9a-f]{2}){4}\Z", re.ASCII | re.IGNORECASE)
_WHITESPACE: Final = re.compile(r"\s")


def check_disks(causes: Causes, raw: dict[str, Any], spec: VMISpec, path: str) -> None:
    volumes = {volume.name: volume for volume in spec.volumes}
    seen: set[str] = set()
    written = ((raw.get("domain") or {}).get("devices") or {}).get("disks") or ()
    for index, disk in enumerate(spec.domain.devices.disks):
        here = f"{path}.domain.devices.disks[{index}]"
        causes.unique_name(f"{here}.name", disk.name, seen, "disk")
        kinds = [kind for kind in KINDS if (written[index] or {}).get(kind) is not None]
        if len(kinds) > 1:
            causes.forbidden(here, f"set one of {', '.join(kinds)}")
        kind = kinds[0] if kinds else "disk"
        volume = volumes.get(disk.name)
        if disk.name and volume is None and kind != "cdrom":
            causes.invalid(
                f"{here}.name", f"there is no volume {disk.name!r}; only a CD-ROM drive may be empty"
            )
        if kind == "lun" and volume is not None and not volume.claim_name:
            causes.invalid(
                f"{here}.lun", "a LUN needs a persistentVolumeClaim or dataVolume with volumeMode Block"
            )
        _check_disk(causes, disk, kind, here)


def _check_disk(causes: Causes, disk: Disk, kind: str, here: str) -> None:
    target = {"disk": disk.disk, "cdrom": disk.cdrom, "lun": disk.lun}[kind]
    if target is not None and target.bus and target.bus not in BUSES[kind]:
        causes.unsupported(
            f"{here}.{kind}.bus", f"a {kind} cannot be on {target.bus!r}: use {' or '.join(BUSES[kind])}"
        )
    if disk.cdrom and disk.cdrom.readonly is False:
        causes.invalid(f"{here}.cdrom.readonly", "a CD-ROM is always read-only: leave it out")
    if disk.serial and (len(disk.serial) > MOST_SERIAL or not _SERIAL.match(disk.serial)):
        causes.invalid(
            f"{here}.serial",
            f"a serial number has up to {MOST_SERIAL} letters, digits and the characters _ . + -",
        )
    causes.one_of(f"{here}.cache", disk.cache, CACHES)
    causes.one_of(f"{here}.io", disk.io, IO_MODES)
    if disk.io == "native" and disk.cache in ("writethrough", "writeback"):
        causes.invalid(f"{here}.io", f"native needs the cache none or directsync, not {disk.cache}")
    if disk.shareable and disk.cache not in ("", "none"):
        causes.invalid(f"{here}.cache", f"a shareable disk needs the cache none, not {disk.cache}")


def check_boot_order(causes: Causes, spec: VMISpec, path: str) -> None:
    """Each boot order is at least 1 and given once, over disks and interfaces."""
    seen: dict[int, str] = {}
    devices = spec.domain.devices
    ordered = [("disks", index, disk.boot_order) for index, disk in enumerate(devices.disks)]
    ordered += [("interfaces", index, card.boot_order) for index, card in enumerate(devices.interfaces)]
    for kind, index, order in ordered:
        if order is None:
            continue
        field = f"{path}.domain.devices.{kind}[{index}].bootOrder"
        if order < 1:
            causes.invalid(field, f"{order} is too small: the first to boot has 1")
        elif order in seen:
            causes.duplicate(field, f"{seen[order]} has the boot order {order} already")
        else:
            seen[order] = f"{kind}[{index}]"


def check_volumes(causes: Causes, raw: dict[str, Any], spec: VMISpec, path: str) -> None:
    names: set[str] = set()
    claims: set[str] = set()
    seeds = 0
    for index, volume in enumerate(spec.volumes):
        here = f"{path}.volumes[{index}]"
        written = raw["volumes"][index] or {}
        causes.unique_name(f"{here}.name", volume.name, names, "volume")
        sources = [name for name, value in written.items() if name != "name" and value is not None]
        refused = [name for name in sources if name in REFUSED_SOURCES]
        for name in refused:
            causes.unsupported(
                f"{here}.{name}", f"Hotvirt has no {name} volumes: use {REFUSED_SOURCES[name]}"
            )
        if not sources:
            causes.required(here, f"the volume has no source: set one of {', '.join(SOURCES)}")
        elif len(sources) > 1:
            causes.forbidden(here, f"the volume has {len(sources)} sources ({', '.join(sources)}): set one")
        _check_source(causes, volume, here)
        if volume.claim_name:
            if volume.claim_name in claims:
                causes.duplicate(here, f"another volume uses the claim {volume.claim_name!r} already")
            claims.add(volume.claim_name)
        if volume.cloud_init_no_cloud is not None:
            seeds += 1
            if seeds > 1:
                causes.duplicate(f"{here}.cloudInitNoCloud", "a machine has one cloud-init volume")


def _check_source(causes: Causes, volume: Volume, here: str) -> None:
    if volume.container_disk is not None:
        image = volume.container_disk.image
        if not image:
            causes.required(f"{here}.containerDisk.image", "name the image")
        elif _WHITESPACE.search(image):
            causes.invalid(f"{here}.containerDisk.image", f"{image!r} is not the name of an image")
        check_image_path(causes, f"{here}.containerDisk.path", volume.container_disk.path)
        causes.one_of(
            f"{here}.containerDisk.imagePullPolicy", volume.container_disk.image_pull_policy, PULL_POLICIES
        )
    if volume.persistent_volume_claim is not None and not volume.persistent_volume_claim.claim_name:
        causes.required(f"{here}.persistentVolumeClaim.claimName", "name the claim")
    if volume.data_volume is not None and not volume.data_volume.name:
        causes.required(f"{here}.dataVolume.name", "name the DataVolume")
    if volume.empty_disk is not None and volume.empty_disk.capacity <= Quantity(0):
        causes.invalid(f"{here}.emptyDisk.capacity", "an empty disk needs a size, like 1Gi")
    if volume.cloud_init_no_cloud is not None:
        _check_cloud_init(causes, volume.cloud_init_no_cloud, f"{here}.cloudInitNoCloud")


def _check_cloud_init(causes: Causes, seed: CloudInitNoCloud, here: str) -> None:
    user = {
        "userData": seed.user_data,
        "userDataBase64": seed.user_data_base64,
        "secretRef": seed.user_data_secret_ref,
    }
    network = {
        "networkData": seed.network_data,
        "networkDataBase64": seed.network_data_base64,
        "networkDataSecretRef": seed.network_data_secret_ref,
    }
    if not any((*user.values(), *network.values())):
        causes.required(here, f"there is no data: set one of {', '.join((*user, *network))}")
    for sources in (user, network):
        given = [name for name, value in sources.items() if value]
        if len(given) > 1:
            causes.forbidden(here, f"set one of {', '.join(given)}")
    for name, text in (
        ("userDataBase64", seed.user_data_base64),
        ("networkDataBase64", seed.network_data_base64),
    ):
        try:
            base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            causes.invalid(f"{here}.{name}", "this is not base64")
    for name, reference in (
        ("secretRef", seed.user_data_secret_ref),
        ("networkDataSecretRef", seed.network_data_secret_ref),
    ):
        if reference is not None and not reference.name:
            causes.required(f"{here}.{name}.name", "name the secret")
    inline = seed.user_data, seed.user_data_base64, seed.network_data, seed.network_data_base64
    size = sum(len(text.encode()) for text in inline)
    if size > MOST_INLINE_DATA:
        causes.invalid(
            here, f"{size} bytes of data are too much here ({MOST_INLINE_DATA} fit): put it in a secret"
        )


def check_networks(causes: Causes, raw: dict[str, Any], spec: VMISpec, path: str) -> None:
    networks: set[str] = set()
    cards: set[str] = set()
    written = ((raw.get("domain") or {}).get("devices") or {}).get("interfaces") or ()
    for index, network in enumerate(spec.networks):
        here = f"{path}.networks[{index}]"
        causes.unique_name(f"{here}.name", network.name, networks, "network")
        if network.multus is not None:
            causes.unsupported(f"{here}.multus", "Hotvirt has no Multus networks: use pod: {}")
        elif network.pod is None:
            causes.required(f"{here}.pod", "the network has no source: set pod: {}")
        if index == 1:
            causes.unsupported(here, "a machine has one network, the Pod's")
    for index, card in enumerate(spec.domain.devices.interfaces):
        here = f"{path}.domain.devices.interfaces[{index}]"
        causes.unique_name(f"{here}.name", card.name, cards, "interface")
        if card.name and card.name not in networks:
            causes.invalid(
                f"{here}.name", f"there is no network {card.name!r}: add it to networks with pod: {{}}"
            )
        for name in REFUSED_BINDINGS:
            if (written[index] or {}).get(name) is not None:
                causes.unsupported(
                    f"{here}.{name}", f"Hotvirt has no {name} interfaces: use masquerade: {{}}"
                )
        if index == 1:
            causes.unsupported(here, "a machine has one interface, on the Pod's network")
        _check_interface(causes, card, here)
    for index, network in enumerate(spec.networks):
        if network.name and network.name not in cards:
            causes.invalid(
                f"{path}.networks[{index}].name",
                f"no interface uses the network {network.name!r}: add one to domain.devices.interfaces",
            )


def _check_interface(causes: Causes, card: Interface, here: str) -> None:
    causes.one_of(f"{here}.model", card.model, MODELS)
    if card.mac_address:
        if not _MAC.match(card.mac_address):
            causes.invalid(
                f"{here}.macAddress", f"{card.mac_address!r} is not an address like 02:00:00:12:34:56"
            )
        elif int(card.mac_address[:2], 16) & 1:
            causes.invalid(
                f"{here}.macAddress", f"{card.mac_address} is a multicast address: a card needs its own"
            )
    ports: set[tuple[int, str]] = set()
    names: set[str] = set()
    for index, port in enumerate(card.ports):
        field = f"{here}.ports[{index}]"
        protocol = port.protocol or "TCP"
        if not 0 < port.port < 65536:
            causes.invalid(f"{field}.port", f"{port.port} is not between 1 and 65535")
        causes.one_of(f"{field}.protocol", protocol, ("TCP", "UDP"))
        if (port.port, protocol) in ports:
            causes.duplicate(field, f"port {port.port}/{protocol} is listed already")
        if port.name and port.name in names:
            causes.duplicate(f"{field}.name", f"there is another port with the name {port.name!r}")
        ports.add((port.port, protocol))
        names.add(port.name)
