"""An operating system of 512 bytes: says a word on the serial port and halts. It has no guest agent."""

from __future__ import annotations

from pathlib import Path

SAYS = b"an operating system of 512 bytes\r\n"
# Real mode: writes the text to the first serial port, byte by byte, and halts.
#   mov si, text; next: lodsb; test al, al; jz end; mov dx, 0x3f8; out dx, al; jmp next; end: hlt; jmp end
CODE = bytes.fromhex("be 14 7c fc ac 84 c0 74 06 ba f8 03 ee eb f5 f4 eb fd 90 90")


def boot_sector() -> bytes:
    return (CODE + SAYS + b"\0").ljust(510, b"\0") + b"\x55\xaa"


def make_disk(path: Path) -> Path:
    path.write_bytes(boot_sector().ljust(1 << 20, b"\0"))
    return path
