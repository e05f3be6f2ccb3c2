"""A tiny writer of ISO 9660 images with Joliet names: what cloud-init's NoCloud source reads.

One folder, a handful of small files. The plain names are written as `USER-DATA.;1`, which every reader
shows as `user-data`; the Joliet names carry the exact spelling. Standard library only: the launcher runs
it.
"""

from __future__ import annotations

import struct

SECTOR = 2048
_SYSTEM_SECTORS = 16
# As other writers do: small probes (busybox) read 68 KiB before they know that it is an ISO, and fail at
# its end.
_PADDING_SECTORS = 150
_DATE7 = bytes([126, 1, 1, 0, 0, 0, 0])  # 1 January 2026: the same input gives the same image
_DATE17 = b"2026010100000000\0"
_NO_DATE17 = b"0000000000000000\0"


def _both32(value: int) -> bytes:
    return struct.pack("<I", value) + struct.pack(">I", value)


def _both16(value: int) -> bytes:
    return struct.pack("<H", value) + struct.pack(">H", value)


def _sectors(size: int) -> int:
    return -(-size // SECTOR)


def _pad(data: bytes) -> bytes:
    return data + bytes(_sectors(len(data)) * SECTOR - len(data))


def _record(name: bytes, sector: int, size: int, *, folder: bool = False) -> bytes:
    body = b"\0" + _both32(sector) + _both32(size) + _DATE7
    body += bytes([2 if folder else 0, 0, 0]) + _both16(1) + bytes([len(name)]) + name
    if len(body) % 2 == 0:  # with the length byte in front, a record has an even length
        body += b"\0"
    return bytes([len(body) + 1]) + body


def _plain_name(name: str) -> bytes:
    upper = name.upper()
    return (upper if "." in upper else upper + ".").encode("ascii") + b";1"


def _joliet_name(name: str) -> bytes:
    return name.encode("utf-16-be")


def _folder(sector: int, entries: list[tuple[bytes, int, int]]) -> bytes:
    data = _record(b"\0", sector, SECTOR, folder=True) + _record(b"\1", sector, SECTOR, folder=True)
    for name, where, size in sorted(entries):
        data += _record(name, where, size)
    if len(data) > SECTOR:
        raise ValueError("too many files for one folder sector")
    return _pad(data)


def _path_table(sector: int, byte_order: str) -> bytes:
    return _pad(struct.pack(byte_order + "BBIHBB", 1, 0, sector, 1, 0, 0))


def _descriptor(kind: int, label: str, total: int, tables: tuple[int, int], root: int) -> bytes:
    joliet = kind == 2

    def text(value: str, length: int) -> bytes:
        if joliet:
            return (value.encode("utf-16-be") + b"\0 " * length)[: length // 2 * 2].ljust(length, b"\0")
        return value.encode("ascii").ljust(length)

    data = bytes([kind]) + b"CD001" + b"\1\0"
    data += text("", 32) + text(label, 32) + bytes(8) + _both32(total)
    data += (b"%/E" if joliet else b"").ljust(32, b"\0")
    data += _both16(1) + _both16(1) + _both16(SECTOR) + _both32(10)
    data += struct.pack("<II", tables[0], 0) + struct.pack(">II", tables[1], 0)
    data += _record(b"\0", root, SECTOR, folder=True)
    for length in (128, 128, 128, 128, 37, 37, 37):
        data += text("", length)
    data += _DATE17 + _DATE17 + _NO_DATE17 + _NO_DATE17 + b"\1\0"
    return _pad(data)


def iso_image(label: str, files: dict[str, bytes]) -> bytes:
    """The bytes of an image with this volume label and these files in its root folder."""
    primary, joliet = _SYSTEM_SECTORS, _SYSTEM_SECTORS + 1
    tables = joliet + 2  # four path tables follow the terminator: plain and Joliet, little and big endian
    plain_root, joliet_root = tables + 4, tables + 5
    content, where = b"", joliet_root + 1
    plain_entries, joliet_entries = [], []
    for name, data in files.items():
        plain_entries.append((_plain_name(name), where, len(data)))
        joliet_entries.append((_joliet_name(name), where, len(data)))
        content += _pad(data)
        where += _sectors(len(data))
    where += _PADDING_SECTORS
    parts = [
        bytes(primary * SECTOR),
        _descriptor(1, label, where, (tables, tables + 1), plain_root),
        _descriptor(2, label, where, (tables + 2, tables + 3), joliet_root),
        _pad(b"\xffCD001\1"),
        *(_path_table(plain_root, order) for order in "<>"),
        *(_path_table(joliet_root, order) for order in "<>"),
        _folder(plain_root, plain_entries),
        _folder(joliet_root, joliet_entries),
        content,
        bytes(_PADDING_SECTORS * SECTOR),
    ]
    return b"".join(parts)
