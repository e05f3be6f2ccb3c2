"""Which accelerator a guest can really use here.

That `/dev/kvm` opens says little: inside some virtual machines it opens and then fails on the first
instruction it has to emulate. So a tiny guest is run on it: 230 bytes of firmware that go from real mode to
long mode, use what every kernel uses (CPUID, SSE, `lock cmpxchg16b`) a thousand times, and end QEMU with a
code of its own. Anything else, or nothing within the deadline, means TCG. The answer holds until the
machine boots again. On a cluster the node agent's image has no QEMU: there an init container with the image
of the launcher finds it out (`hotvirt-launcher probe`) and leaves the answer where the agent looks. Standard
library only.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

from hotvirt.hypervisor.qemu.command import QEMU, version_in

CACHE_VARIABLE = "HOTVIRT_CACHE"
DEADLINE = 2.5
KVM, TCG = "kvm", "tcg"
_SUCCESS = 85  # isa-debug-exit makes (value << 1) | 1 of the 0x2a that the probe writes

# start:      cli; cld; clear 0x1000-0x3fff; one page of 2 MiB at 0; CR4 = PAE|OSFXSR|OSXMMEXCPT; CR3 =
# 0x1000;             EFER.LME; CR0 = PG|ET|PE; ljmp to long mode long mode:  1000 times: cpuid; movups;
# lock cmpxchg16b (%rdi) that adds one; push, pop             counted to 1000? out 0x2a to port 0xf4, else
# out 1
_CODE = bytes.fromhex(
    "fafc31c08ed88ec0bf0010b90018f3ab66c70600100320000066c70600200330"
    "000066c7060030830000002e660f0116e00066b8200600000f22e066b8001000"
    "000f22d866b9800000c00f32660d000100000f3066b8110000800f22c066ea65"
    "000f00080066b810008ed88ec08ed0bc00900000bf00800000bee8030000b801"
    "0000000fa20f10070f114720488b07488b5708488d58014889d1f0480fc70f75"
    "1d5358ffcef7c6ff03000075d185f675cd48813fe80300007504b02ae6f4b001"
    "e6f4f4ebf90f1f000000000000000000ffff0000009aaf00ffff00000092cf00"
    "1700c8000f00"
)
_ROM_SIZE = 65536
_RESET_VECTOR = b"\xea\x00\x00\x00\xf0"  # ljmp $0xf000,$0

_known: str | None = None
_version: tuple[int, ...] | None = None
_lock = asyncio.Lock()


async def accelerator() -> str:
    """`kvm` or `tcg`, found out once per boot of this machine."""
    global _known
    async with _lock:
        if _known is None:
            _known = _remembered() or await _find_out()
        return _known


async def qemu_version() -> tuple[int, ...]:
    """(7, 2, 22), say; the oldest that we support where it cannot be found out; empty without a QEMU here."""
    global _version
    if _version is None:
        try:
            process = await asyncio.create_subprocess_exec(
                QEMU, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
        except FileNotFoundError:
            _version = ()
            return _version
        text, _ = await process.communicate()
        _version = version_in(text.decode(errors="replace"))
    return _version


async def _find_out() -> str:
    try:
        found = KVM if os.access("/dev/kvm", os.R_OK | os.W_OK) and await works(KVM) else TCG
    except FileNotFoundError:
        return TCG  # no QEMU to find it out with
    _remember(found)
    return found


def probe() -> int:
    """`hotvirt-launcher probe`: find it out and leave the answer for the node agent."""
    found = asyncio.run(_find_out())
    print(f"guests run with {found} on this node")
    return 0


async def works(accel: str, deadline: float = DEADLINE) -> bool:
    """Whether the probe comes through on this accelerator."""
    rom = bytearray(b"\xf4" * _ROM_SIZE)  # hlt
    rom[: len(_CODE)] = _CODE
    rom[0xFFF0 : 0xFFF0 + len(_RESET_VECTOR)] = _RESET_VECTOR
    with tempfile.NamedTemporaryFile(prefix="hotvirt-probe-") as file:
        file.write(rom)
        file.flush()
        argv = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-m", "16"]
        argv += ["-accel", accel, "-cpu", "host" if accel == KVM else "max", "-bios", file.name]
        argv += ["-device", "isa-debug-exit,iobase=0xf4,iosize=1"]
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(deadline):
                return await process.wait() == _SUCCESS
        except TimeoutError:
            return False
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _cache_file() -> Path:
    own = os.environ.get(CACHE_VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotvirt"
    return (Path(own) if own else base) / "accelerator.json"


def _remembered() -> str | None:
    try:
        known = json.loads(_cache_file().read_text())
        if known["bootId"] == _boot_id() and known["accelerator"] in (KVM, TCG):
            return str(known["accelerator"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _remember(found: str) -> None:
    file = _cache_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({"bootId": _boot_id(), "accelerator": found}))
        unfinished.replace(file)
    except OSError:
        return  # only a shortcut: the next start finds out again
