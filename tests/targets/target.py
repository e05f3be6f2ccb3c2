"""One Kubernetes API under test: where it is, how to get in, what it has, how to stop it."""

from __future__ import annotations

import base64
import ctypes
import json
import random
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
READY_WITHIN = 120.0
STOP_WITHIN = 60.0
FIXED_PORTS = range(20000, 30000)
"""Below those of outgoing connections, one of which would sooner or later have a port that 0 chose."""
CLAIMS: list[socket.socket] = []
"""One for each port that this process was given: it may be used long after."""
LIBC = ctypes.CDLL(None)


@dataclass
class Target:
    name: str
    kubeconfig: Path
    stop: Callable[[], None] = field(default=lambda: None)

    def __post_init__(self) -> None:
        config = yaml.safe_load(self.kubeconfig.read_text())
        names = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
        cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == names["cluster"])
        user = next(u["user"] for u in config["users"] if u["name"] == names["user"])
        self.url: str = cluster["server"].rstrip("/")
        self.token: str | None = user.get("token")
        self.tls = ssl.create_default_context(cadata=self._pem(cluster, "certificate-authority").decode())
        self.tls_without_user = ssl.create_default_context(
            cadata=self._pem(cluster, "certificate-authority").decode()
        )
        if self.token is None:
            self._load_client_certificate(user)

    def _pem(self, section: dict[str, Any], key: str) -> bytes:
        if data := section.get(f"{key}-data"):
            return base64.b64decode(data)
        path: str = section[key]
        return (self.kubeconfig.parent / path).read_bytes()

    def _load_client_certificate(self, user: dict[str, Any]) -> None:
        pair = self.kubeconfig.with_suffix(".client.pem")
        pair.touch(mode=0o600)
        pair.write_bytes(self._pem(user, "client-certificate") + b"\n" + self._pem(user, "client-key"))
        try:
            self.tls.load_cert_chain(pair)
        finally:
            pair.unlink()

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """A plain blocking call, for setting up; the tests have a client of their own."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Accept", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=30) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            status, text = refusal.code, refusal.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")

    @cached_property
    def minor(self) -> int:
        """Of Kubernetes 1.x, the x: what the server says differs a little."""
        status, version = self.request("GET", "/version")
        assert status == 200, version
        return int(version["minor"].rstrip("+"))

    def install_crd(self, crd: dict[str, Any]) -> None:
        """Create the CRD unless the server has it, and wait until it is served."""
        collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        status, answer = self.request("POST", collection, crd)
        if status not in (201, 409):
            raise RuntimeError(f"The CRD {crd['metadata']['name']} was refused with {status}: {answer}")
        spec = crd["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        wait_until(lambda: self.request("GET", served)[0] == 200, f"{served} to be served")

    def wait_until_described(self, group_version: str) -> None:
        """The real one writes its OpenAPI document of a new kind a little later."""
        path = f"apis/{group_version}"
        wait_until(lambda: path in self.request("GET", "/openapi/v3")[1]["paths"], f"OpenAPI of {path}")


def wait_until(true: Callable[[], bool], what: str, within: float = READY_WITHIN) -> None:
    """Poll, for things that have no event to wait for: a server that is starting."""
    deadline = time.monotonic() + within
    looked = time.monotonic()
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {within:.0f} s for {what}.")
        pause_after_look(looked)
        looked = time.monotonic()


def pause_after_look(began: float, least: float = 0.05) -> None:
    """As long as the look took, up to a second: kubectl in a loop keeps what is waited for from going on."""
    time.sleep(max(least, min(1.0, time.monotonic() - began)))


def free_ports(count: int) -> list[int]:
    """Ports that are free, that the kernel gives to nobody who asks for just any, and that no test run on
    this machine is given again as long as this process lives.
    """
    free: list[int] = []
    for port in random.sample(FIXED_PORTS, len(FIXED_PORTS)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0hotvirt-test-port-{port}")  # a name without a file, which goes with its process
            with socket.socket() as one:
                one.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        CLAIMS.append(claim)
        free.append(port)
        if len(free) == count:
            return free
    raise RuntimeError(f"No {count} ports are free on this machine.")


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """For preexec_fn: the process is ended when the one that started it ends, however that ends."""
    pr_set_pdeathsig = 1
    LIBC.prctl(pr_set_pdeathsig, by)


def start_process(
    command: list[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a server that dies with the test run."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def stop_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
