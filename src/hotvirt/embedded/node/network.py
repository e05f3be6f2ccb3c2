"""The network of the Pods: a namespace, an address and a route for each.

As root every Pod gets a network namespace with one veth pair, an address of this instance's /24 and a host
route to it. The host's end has the first address of the /24 on every pair: it is the Pod's gateway, and
answers (proxy ARP) for the other Pods. The rest of the /24 is unreachable, so that a packet to a Pod that
is gone never leaves the machine. Pods reach the outside by masquerading (switched off with `egress=False`).
Without root a Pod shares the host's network and has an address of 127.64.0.0/10 of its own, which its ports
are bound to.

Every step may be repeated: what is there already is kept, so that a Pod whose set-up was cut short is
finished.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import os
import shutil
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = Path("/run/netns")
LOOPBACK_POOL = ipaddress.ip_network("127.64.0.0/10")
TOOL_TIMEOUT = 20.0


class NetworkError(RuntimeError):
    """A command of the set-up failed; the message has what it said."""


@dataclass(frozen=True)
class Sandbox:
    """What one Pod got. `namespace` is None when it shares the host's network."""

    address: str
    namespace: Path | None = None


async def run_tool(*argv: str, stdin: str | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(
            process.communicate(stdin.encode() if stdin else None), TOOL_TIMEOUT
        )
    except TimeoutError:
        process.kill()
        await process.wait()
        raise NetworkError(f"`{' '.join(argv)}` did not answer within {TOOL_TIMEOUT:.0f} s.") from None
    if process.returncode:
        raise NetworkError(f"`{' '.join(argv)}` failed: {err.decode(errors='replace').strip()}")
    return out.decode()


def _is_link(name: str) -> bool:
    """Asked of the kernel itself: in /sys a link stays for a while after it has gone."""
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def short(uid: str) -> str:
    """Ten characters that name a Pod in interface and namespace names (a name may have 15)."""
    return hashlib.sha256(uid.encode()).hexdigest()[:10]


class PodNetwork:
    """The network of all Pods of one state folder."""

    def __init__(self, state_dir: Path, *, egress: bool = True) -> None:
        self._state = state_dir / "network.json"
        self._table = "hotvirt-" + hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:10]
        self._egress = egress
        self._lock = asyncio.Lock()
        self._addresses: dict[str, str] = {}
        self._cidr: ipaddress.IPv4Network | None = None
        self._mtu = 1500
        self._ready = False
        self.reason = self._why_shared()
        self.egress_reason = ""
        self._load()

    @property
    def _gateway(self) -> str:
        assert self._cidr is not None
        return str(self._cidr[1])

    @property
    def isolated(self) -> bool:
        return not self.reason

    @staticmethod
    def _why_shared() -> str:
        if os.geteuid() != 0:
            return "Pods share the host's network: only root may make network namespaces."
        missing = [tool for tool in ("ip", "nsenter") if not shutil.which(tool)]
        if missing:
            names = " and ".join(missing)
            return f"Pods share the host's network: {names} missing (apt install iproute2 util-linux)."
        return ""

    def _load(self) -> None:
        try:
            saved = json.loads(self._state.read_text())
        except (FileNotFoundError, ValueError):
            return
        self._addresses = saved.get("addresses", {})
        if saved.get("cidr"):
            self._cidr = ipaddress.IPv4Network(saved["cidr"])

    def _save(self) -> None:
        temporary = self._state.with_suffix(".new")
        cidr = str(self._cidr) if self._cidr else None
        temporary.write_text(json.dumps({"cidr": cidr, "addresses": self._addresses}))
        temporary.replace(self._state)

    async def add(self, uid: str) -> Sandbox:
        """Make the Pod's network, or finish it; the same address every time."""
        async with self._lock:
            if not self.isolated:
                return Sandbox(self._loopback_address(uid))
            try:
                await self._prepare_host()
                address = self._pod_address(uid)
                await self._make_namespace_or_anew(uid, address)
            except (NetworkError, OSError) as error:
                if set(self._addresses) - {uid}:
                    raise
                # The very first one: this machine (a container, say) does not let us. Go on as without root.
                self._addresses.pop(uid, None)
                await self._clear_host()
                self.reason = f"Pods share the host's network: {error}"
                return Sandbox(self._loopback_address(uid))
            return Sandbox(address, NAMESPACES / f"hotvirt-{short(uid)}")

    async def _make_namespace_or_anew(self, uid: str, address: str) -> None:
        try:
            await self._make_namespace(uid, address)
        except (NetworkError, OSError):
            # Cut short in the middle by a kill, its parts may not fit together, or one is just going: once
            # more from the start.
            await self._remove_namespace(uid, address)
            await self._make_namespace(uid, address)

    def existing(self, uid: str) -> Sandbox | None:
        """What an adopted Pod has."""
        address = self._addresses.get(uid)
        if not address:
            return None
        if ipaddress.ip_address(address) in LOOPBACK_POOL:
            return Sandbox(address)
        return Sandbox(address, NAMESPACES / f"hotvirt-{short(uid)}")

    async def remove(self, uid: str) -> None:
        async with self._lock:
            address = self._addresses.get(uid)
            if address is None:
                return
            if ipaddress.ip_address(address) not in LOOPBACK_POOL:
                await self._remove_namespace(uid, address)
            del self._addresses[uid]
            self._save()
            if not self._addresses:
                await self._clear_host()

    async def _remove_namespace(self, uid: str, address: str) -> None:
        commands = [f"link del hv{short(uid)}", f"route del {address}/32", f"netns del hotvirt-{short(uid)}"]
        await self._quietly("ip", "-force", "-batch", "-", stdin="\n".join(commands))

    async def keep_only(self, uids: Iterable[str]) -> None:
        """Remove the networks of Pods that are no more (after a crash)."""
        for uid in set(self._addresses) - set(uids):
            await self.remove(uid)

    @staticmethod
    async def _quietly(*argv: str, stdin: str | None = None) -> None:
        """For removals: what is not there needs no removing."""
        try:
            await run_tool(*argv, stdin=stdin)
        except NetworkError:
            return

    def _loopback_address(self, uid: str) -> str:
        if uid not in self._addresses:
            taken = set(self._addresses.values())
            start = int(hashlib.sha256(uid.encode()).hexdigest(), 16)
            size = LOOPBACK_POOL.num_addresses - 2
            self._addresses[uid] = next(
                address
                for step in range(size)
                if (address := str(LOOPBACK_POOL[1 + (start + step) % size])) not in taken
            )
            self._save()
        return self._addresses[uid]

    def _pod_address(self, uid: str) -> str:
        assert self._cidr is not None
        if uid not in self._addresses:
            taken = set(self._addresses.values())
            taken.add(self._gateway)
            free = (str(host) for host in self._cidr.hosts() if str(host) not in taken)
            address = next(free, None)
            if address is None:
                raise NetworkError(
                    f"All {len(taken) - 1} addresses of {self._cidr} are in use: delete Pods first."
                )
            self._addresses[uid] = address
            self._save()
        return self._addresses[uid]

    async def _prepare_host(self) -> None:
        """Once per run, and again after the last Pod went."""
        if self._ready:
            return
        if self._cidr is None or not self._addresses:
            self._cidr = await self._free_cidr()
            self._save()
        await run_tool("ip", "route", "replace", "unreachable", str(self._cidr))
        if self._egress:
            await self._masquerade()
        self._mtu = await self._mtu_of_the_way_out()
        self._ready = True

    async def _free_cidr(self) -> ipaddress.IPv4Network:
        """A /24 of 10.0.0.0/8 that no route of the host overlaps; the same one again for the same folder
        where free.
        """
        taken = []
        for route in json.loads(await run_tool("ip", "-json", "-4", "route", "show", "table", "all") or "[]"):
            if (target := route.get("dst", "default")) != "default":
                network = ipaddress.IPv4Network(target, strict=False)
                ours = network == self._cidr and route.get("type") == "unreachable"
                if not ours:
                    taken.append(network)
        start = int(hashlib.sha256(os.fsencode(self._state)).hexdigest(), 16)
        # 10.0 and 10.1 are what home networks and other clusters use most.
        for step in range(254 * 256):
            index = (start + step) % (254 * 256)
            candidate = ipaddress.IPv4Network(f"10.{2 + index // 256}.{index % 256}.0/24")
            if not any(candidate.overlaps(network) for network in taken):
                return candidate
        raise NetworkError("Every /24 of 10.0.0.0/8 is in use by a route of this machine.")

    async def _masquerade(self) -> None:
        if not shutil.which("nft"):
            self.egress_reason = "Guests cannot reach other machines: nft is missing (apt install nftables)."
            return
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        await run_tool(
            "nft",
            "-f",
            "-",
            stdin=f"""
                table ip {self._table} {{}}
                delete table ip {self._table}
                table ip {self._table} {{
                    chain postrouting {{
                        type nat hook postrouting priority srcnat;
                        ip saddr {self._cidr} ip daddr != {self._cidr} masquerade
                    }}
                }}
            """,
        )

    async def _clear_host(self) -> None:
        if self._cidr is not None:
            await self._quietly("ip", "route", "del", "unreachable", str(self._cidr))
            if shutil.which("nft"):
                await self._quietly("nft", "delete", "table", "ip", self._table)
        self._ready = False

    @staticmethod
    async def _mtu_of_the_way_out() -> int:
        """So that a guest does not send what is dropped there."""
        routes = json.loads(await run_tool("ip", "-json", "-4", "route", "show", "default") or "[]")
        try:
            return int(Path(f"/sys/class/net/{routes[0]['dev']}/mtu").read_text())
        except (IndexError, KeyError, OSError):
            return 1500

    async def _make_namespace(self, uid: str, address: str) -> None:
        """Two runs of `ip`, because a Pod's start waits for them."""
        namespace, link = f"hotvirt-{short(uid)}", f"hv{short(uid)}"
        outside = []
        if not (NAMESPACES / namespace).exists():
            outside.append(f"netns add {namespace}")
        if not _is_link(link):
            peer = f"peer name eth0 mtu {self._mtu} netns {namespace}"
            outside.append(f"link add {link} mtu {self._mtu} type veth {peer}")
        outside += [
            f"link set {link} up",
            f"address replace {self._gateway}/32 dev {link}",
            f"route replace {address}/32 dev {link}",
        ]
        await run_tool("ip", "-batch", "-", stdin="\n".join(outside))
        for setting, value in (
            (f"conf/{link}/forwarding", "1"),
            (f"conf/{link}/proxy_arp", "1"),
            (f"neigh/{link}/proxy_delay", "0"),
        ):
            Path("/proc/sys/net/ipv4", setting).write_text(value)
        inside = [
            "link set lo up",
            "link set eth0 up",
            f"address replace {address}/24 dev eth0",
            f"route replace default via {self._gateway} dev eth0",
        ]
        await run_tool("ip", "-n", namespace, "-batch", "-", stdin="\n".join(inside))
