"""`hotvirt resize`: another size for a VM, with the server's plan (`--dry-run`) or the change as it happens
(`--wait`).
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .failures import FAILED, TIMED_OUT, USAGE, CliError
from .options import kubeconfig_option, namespace_option, output_option, vm_argument
from .output import show

if TYPE_CHECKING:
    from .api import Api
    from .progress import Part

GROUP = "/apis/kubevirt.io/v1"
MERGE = "application/merge-patch+json"
DURATION = re.compile(r"(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?\Z")
News = tuple[float, str, dict[str, Any] | None]


class Seconds(click.ParamType[float]):
    """90s, 5m, 1h30m, or a number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = DURATION.match(str(value))
        if not value or match is None:
            self.fail(f"{value!r} is not a duration: write one like 90s, 5m or 1h30m.", param, ctx)
        parts = match.groupdict(default="0")
        return int(parts["h"]) * 3600 + int(parts["m"]) * 60 + float(parts["s"])


@click.command()
@vm_argument
@click.option("--cpu", type=click.IntRange(min=1), metavar="N", help="The number of vCPUs.")
@click.option("--memory", metavar="Q", help="The guest's memory, like 2Gi.")
@click.option(
    "--dry-run", is_flag=True, help="Only show the plan: what is live, what waits, whether there is room."
)
@click.option("--wait", is_flag=True, help="Follow the change to its end.")
@click.option("--timeout", type=Seconds(), default="5m", show_default=True, help="How long to --wait.")
@output_option
@namespace_option
@kubeconfig_option
def resize(
    vm: str,
    cpu: int | None,
    memory: str | None,
    dry_run: bool,
    wait: bool,
    timeout: float,
    output: str | None,
    namespace: str | None,
    kubeconfig: Path | None,
) -> int:
    """Give a VM more or fewer vCPUs or memory, while it runs.

    What cannot be done live is kept and waits for a restart. With --wait the exit code tells the end: 0 done,
    5 restart required, 6 deferred, 7 infeasible, 8 quota or LimitRange, 9 not in time.

    \b
    Examples:
      hotvirt resize first --cpu 4 --wait
      hotvirt resize first --memory 2Gi --dry-run
      hotvirt resize first --cpu 2 --memory 4Gi --wait --timeout 90s -o json
    """
    if cpu is None and memory is None:
        raise click.UsageError("Say what to change: --cpu, --memory, or both.")
    if dry_run and wait:
        raise click.UsageError("--dry-run changes nothing, so there is nothing to --wait for.")
    from hotvirt.kube.errors import ApiError

    from .api import cli_error, connect

    api = connect(kubeconfig)
    asked = Asked(api, namespace or api.namespace, vm, output)
    try:
        asked.read(cpu, memory)
        if dry_run:
            return asked.plan()
        if not wait:
            return asked.ask()
        return asked.follow(timeout)
    except ApiError as error:
        raise cli_error(error) from error


class Asked:
    """One wish: what the VM has, what it should have, and what came of it."""

    def __init__(self, api: Api, namespace: str, name: str, output: str | None) -> None:
        self.api = api
        self.name = name
        self.output = output
        self.vms = f"{GROUP}/namespaces/{namespace}/virtualmachines"
        self.vmis = f"{GROUP}/namespaces/{namespace}/virtualmachineinstances"
        self.parts: list[Part] = []
        self.patch: dict[str, Any] = {}
        self.summary = ""
        """From what to what, for a person."""
        self.answer: dict[str, Any] = {"name": name, "namespace": namespace}
        self.timeline: list[dict[str, Any]] = []

    def read(self, cpu: int | None, memory: str | None) -> None:
        """What the VM has now decides how its vCPUs are made up."""
        from hotvirt.api import codec
        from hotvirt.api.kubevirt import VirtualMachine
        from hotvirt.plan.memory import guest_memory
        from hotvirt.plan.topology import topology

        from .progress import Part

        vm = self.api.get(f"{self.vms}/{self.name}")
        spec = codec.convert(vm, VirtualMachine).spec.template.spec
        shape, had = topology(spec.domain), guest_memory(spec)
        wishes: list[str] = []
        if cpu is not None:
            sockets = sockets_for(cpu, shape.cores, shape.threads)
            self.patch["cpu"] = {"sockets": sockets}
            text = f"{cpu} vCPU{'s' if cpu > 1 else ''}"
            self.parts.append(Part("cpu", "domain.cpu.sockets", "HotVCPUChange", cpu, text))
            wishes.append(f"{shape.vcpus} → {text}")
            self.answer["vcpus"] = cpu
        if memory is not None:
            bytes_wanted = memory_size(memory)
            self.patch["memory"] = {"guest": memory}
            self.parts.append(
                Part("memory", "domain.memory.guest", "HotMemoryChange", bytes_wanted, f"{memory} of memory")
            )
            wishes.append(f"{had} → {memory}" if had else f"memory {memory}")
            self.answer["memory"] = memory
        self.summary = ", ".join(wishes)

    @property
    def goal(self) -> str:
        return " and ".join(part.text for part in self.parts)

    def send(self, dry_run: bool) -> dict[str, Any]:
        body = {"spec": {"template": {"spec": {"domain": self.patch}}}}
        params = {"fieldManager": "hotvirt-cli"} | ({"dryRun": "All"} if dry_run else {})
        vm: dict[str, Any] = self.api.request(
            "PATCH", f"{self.vms}/{self.name}", body, params=params, content_type=MERGE
        )
        self.answer["warnings"] = list(self.api.warnings)
        return vm

    def plan(self) -> int:
        self.send(dry_run=True)
        running = self.running()
        self.answer |= {"result": "planned", "running": running}
        self.say(f"VM {self.name}, {self.summary} (nothing is changed):")
        self.say_plan(running)
        return self.end()

    def ask(self) -> int:
        self.send(dry_run=False)
        running = self.running()
        self.answer |= {"result": "asked" if running else "stored", "running": running}
        self.say(f"VM {self.name} was asked for {self.summary}")
        self.say_plan(running)
        return self.end()

    def running(self) -> bool:
        return runs(Feed(self.api, self.vmis, self.name, "vmi", queue.Queue()).first)

    def say_plan(self, running: bool) -> None:
        for warning in self.answer["warnings"]:
            self.say(f"  {warning}")
        if not running:
            self.say("  the VM does not run: it has this size when it starts")
        elif not self.answer["warnings"]:
            self.say("  nothing to do: the machine has this size")

    def follow(self, timeout: float) -> int:
        """Ask, and tell what the watches show until it is over."""
        from .progress import Progress

        news: queue.Queue[News] = queue.Queue()
        feeds = [
            Feed(self.api, self.vms, self.name, "vm", news),
            Feed(self.api, self.vmis, self.name, "vmi", news),
        ]
        started = time.monotonic()
        vm = self.send(dry_run=False)
        if not runs(feeds[1].first):
            self.answer |= {"result": "stored", "running": False}
            self.say(f"VM {self.name} does not run: it has {self.goal} when it starts")
            return self.end()
        self.tell(0.0, "asked", self.summary)
        for warning in self.answer["warnings"]:
            self.say(f"            {warning}")
        progress = Progress(self.parts, int(vm["metadata"].get("generation") or 0))
        for feed in feeds:
            feed.start()
        while progress.outcome is None:
            try:
                at, kind, obj = news.get(timeout=max(0.0, started + timeout - time.monotonic()))
            except queue.Empty:
                return self.end(
                    "timeout", TIMED_OUT, f"VM {self.name} is not there after {timeout:g} s; it goes on."
                )
            if kind == "error":
                raise CliError(str((obj or {}).get("message")), FAILED)
            for stage, text in progress.vm(obj) if kind == "vm" else progress.vmi(obj):
                self.tell(at - started, stage, text)
        outcome = progress.outcome
        if not outcome.code:
            self.tell(time.monotonic() - started, "done", "")
        return self.end(outcome.result, outcome.code, outcome.message)

    def tell(self, after: float, stage: str, text: str) -> None:
        milliseconds = round(after * 1000)
        self.timeline.append({"ms": milliseconds, "stage": stage, "text": text})
        self.say(f"{milliseconds:>7} ms  {stage:<10}  {text}".rstrip())

    def say(self, line: str) -> None:
        if not self.output:
            click.echo(line)

    def end(self, result: str = "", code: int = 0, message: str = "") -> int:
        if result:
            self.answer |= {"result": result, "message": message}
        if self.timeline:
            self.answer["timeline"] = self.timeline
        if self.output:
            show(self.answer | {"exitCode": code}, self.output)
        if code:
            raise CliError(sentence(message), code)
        return code


class Feed:
    """One object from a watch, each state with the time it came: no polling.

    What it starts from is read at once, so that nothing that happens after an edit can be missed.
    """

    def __init__(self, api: Api, path: str, name: str, kind: str, news: queue.Queue[News]) -> None:
        self.api, self.path, self.name, self.kind, self.news = api, path, name, kind, news
        self.first, self.version = self._read()

    def start(self) -> None:
        """From what there was: if the machine has its size already, nothing will ever change."""
        self.news.put((time.monotonic(), self.kind, self.first))
        # A daemon: it blocks in a read, and the command ends when its work is done.
        threading.Thread(target=self._run, daemon=True).start()

    def _read(self) -> tuple[dict[str, Any] | None, str]:
        found = self.api.get(self.path, fieldSelector=f"metadata.name={self.name}")
        items = [each for each in found["items"] if each["metadata"]["name"] == self.name]
        return (items[0] if items else None), found["metadata"]["resourceVersion"]

    def _run(self) -> None:
        from hotvirt.kube.errors import ApiError, Gone

        try:
            while True:
                try:
                    for obj in self._changes():
                        self.news.put((time.monotonic(), self.kind, obj))
                except Gone:
                    pass  # The watch was too old; what follows is as good as new.
                current, self.version = self._read()
                self.news.put((time.monotonic(), self.kind, current))
        except ApiError as error:
            self.news.put((time.monotonic(), "error", {"message": error.message}))

    def _changes(self) -> Iterator[dict[str, Any] | None]:
        for event in self.api.watch(self.path, self.version, self.name):
            metadata = event["object"]["metadata"]
            self.version = metadata["resourceVersion"]
            if event["type"] != "BOOKMARK" and metadata["name"] == self.name:
                yield None if event["type"] == "DELETED" else event["object"]


def runs(vmi: dict[str, Any] | None) -> bool:
    """A machine that has ended may still be there, until its VM is started again."""
    return vmi is not None and (vmi.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def sockets_for(vcpus: int, cores: int, threads: int) -> int:
    each = cores * threads
    if vcpus % each:
        near = [str(count) for count in (vcpus // each * each, (vcpus // each + 1) * each) if count]
        raise CliError(
            f"Each socket of this VM has {each} vCPUs (cores {cores} × threads {threads}): "
            f"use a multiple of {each}, like {' or '.join(near)}.",
            USAGE,
        )
    return vcpus // each


def memory_size(text: str) -> int:
    from hotvirt.api.quantity import Quantity

    if error := Quantity.parse_error(text):
        raise CliError(sentence(f"--memory: {error}"), USAGE)
    return Quantity(text).value


def sentence(text: str) -> str:
    text = " ".join(text.split())
    if "." not in text.partition(" ")[0]:  # the path of a field stays as it is
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
