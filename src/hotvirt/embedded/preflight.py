"""What can be known to be wrong before anything is started or made: missing packages, a busy port."""

from __future__ import annotations

import errno
import shutil
import socket

ANNOTATION_CLOSED = "hotvirt.io/closed-by-down"
"""On a node that `hotvirt down --stop-vms` closed: the next `up` opens it again."""
PACKAGES = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
LOOPBACK = "127.0.0.1"


class Refusal(Exception):
    """Hotvirt cannot start here; the message says why and what to do."""


def check_packages() -> None:
    missing = {program: package for program, package in PACKAGES.items() if not shutil.which(program)}
    if missing:
        programs = " and ".join(missing)
        raise Refusal(
            f"{programs} {'is' if len(missing) == 1 else 'are'} missing. "
            f"Install with: sudo apt-get install {' '.join(missing.values())}"
        )


def check_port(port: int) -> None:
    """Bind and let go. Somebody may still come in between; then the server says the same."""
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise port_refusal(port, error) from error


def port_refusal(port: int, error: OSError) -> Refusal:
    if error.errno == errno.EADDRINUSE:
        return Refusal(
            f"Port {port} of {LOOPBACK} is in use. Choose another with --port; 0 takes any that is free."
        )
    return Refusal(f"Port {port} of {LOOPBACK} cannot be used: {error.strerror}. Choose another with --port.")
