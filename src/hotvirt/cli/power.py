"""`start`, `stop`, `restart`, `pause`, `unpause` and `soft-reboot`, with virtctl's flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import kubeconfig_option, namespace_option, vm_argument

SUBRESOURCES = "/apis/subresources.kubevirt.io/v1"

dry_run_option = click.option("--dry-run", is_flag=True, help="Only ask whether it would be done.")
grace_option = click.option(
    "--grace-period",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="How long the guest may take before it is switched off.",
)


def act(
    kubeconfig: Path | None,
    namespace: str | None,
    kind: str,
    name: str,
    verb: str,
    options: dict[str, Any],
    dry_run: bool,
) -> None:
    from hotvirt.kube.errors import ApiError

    from .api import cli_error, connect

    if dry_run:
        options["dryRun"] = ["All"]
    api = connect(kubeconfig)
    where = namespace or api.namespace
    try:
        api.request("PUT", f"{SUBRESOURCES}/namespaces/{where}/{kind}/{name}/{verb}", options)
    except ApiError as error:
        raise cli_error(error) from error


def say(name: str, what: str, dry_run: bool) -> None:
    click.echo(f"VM {name} {'would be' if dry_run else 'was'} scheduled to {what}")


@click.command()
@vm_argument
@click.option("--paused", is_flag=True, help="Start it, and let the guest wait for `hotvirt unpause`.")
@dry_run_option
@namespace_option
@kubeconfig_option
def start(vm: str, paused: bool, dry_run: bool, namespace: str | None, kubeconfig: Path | None) -> None:
    """Start a VM.

    \b
    Examples:
      hotvirt start first
      hotvirt start first --paused -n shop
    """
    act(kubeconfig, namespace, "virtualmachines", vm, "start", {"paused": True} if paused else {}, dry_run)
    say(vm, "start", dry_run)


@click.command()
@vm_argument
@grace_option
@click.option("--force", is_flag=True, help="Switch it off at once, or after --grace-period.")
@dry_run_option
@namespace_option
@kubeconfig_option
def stop(
    vm: str,
    grace_period: int | None,
    force: bool,
    dry_run: bool,
    namespace: str | None,
    kubeconfig: Path | None,
) -> None:
    """Stop a VM: its power button is pressed, and the guest shuts down.

    \b
    Examples:
      hotvirt stop first
      hotvirt stop first --grace-period 10   give the guest 10 s
      hotvirt stop first --force             pull the plug
    """
    grace = 0 if force and grace_period is None else grace_period
    options = {} if grace is None else {"gracePeriod": grace}
    act(kubeconfig, namespace, "virtualmachines", vm, "stop", options, dry_run)
    say(vm, "stop", dry_run)


@click.command()
@vm_argument
@grace_option
@click.option("--force", is_flag=True, help="Do not wait for the guest to shut down.")
@dry_run_option
@namespace_option
@kubeconfig_option
def restart(
    vm: str,
    grace_period: int | None,
    force: bool,
    dry_run: bool,
    namespace: str | None,
    kubeconfig: Path | None,
) -> None:
    """Restart a VM: a new machine with what its spec says now.

    \b
    Examples:
      hotvirt restart first
      hotvirt restart first --force --grace-period 0
    """
    if grace_period and not force:
        raise click.UsageError("A restart takes --grace-period only with --force.")
    if grace_period:
        raise click.UsageError("A forced restart waits for nothing: --grace-period can only be 0.")
    options = {"gracePeriodSeconds": 0} if force or grace_period == 0 else {}
    act(kubeconfig, namespace, "virtualmachines", vm, "restart", options, dry_run)
    say(vm, "restart", dry_run)


def machine_argument(words: tuple[str, ...]) -> str:
    """`NAME`, or as virtctl has it `vm NAME` or `vmi NAME`."""
    if len(words) == 1:
        return words[0]
    if len(words) == 2 and words[0] in (
        "vm",
        "vms",
        "vmi",
        "vmis",
        "virtualmachine",
        "virtualmachineinstance",
    ):
        return words[1]
    raise click.UsageError("Name one VM, as in: hotvirt pause first")


machine = click.argument("words", nargs=-1, required=True, metavar="[vm|vmi] VM")


def of_machine(words: tuple[str, ...], verb: str, what: str, options: dict[str, Any]) -> None:
    name = machine_argument(words)
    kubeconfig, dry_run = options["kubeconfig"], options["dry_run"]
    act(kubeconfig, options["namespace"], "virtualmachineinstances", name, verb, {}, dry_run)
    say(name, what, dry_run)


@click.command()
@machine
@dry_run_option
@namespace_option
@kubeconfig_option
def pause(words: tuple[str, ...], **options: Any) -> None:
    """Freeze a running VM; its memory stays.

    Let it go on with `hotvirt unpause`.
    """
    of_machine(words, "pause", "pause", options)


@click.command()
@machine
@dry_run_option
@namespace_option
@kubeconfig_option
def unpause(words: tuple[str, ...], **options: Any) -> None:
    """Let a paused VM go on."""
    of_machine(words, "unpause", "unpause", options)


@click.command("soft-reboot")
@machine
@dry_run_option
@namespace_option
@kubeconfig_option
def soft_reboot(words: tuple[str, ...], **options: Any) -> None:
    """Ask the guest to reboot; the machine stays the same."""
    of_machine(words, "softreboot", "soft-reboot", options)
