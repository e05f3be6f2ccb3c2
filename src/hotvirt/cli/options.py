"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def state_dir_option(function: F) -> F:
    return click.option(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=True),
        metavar="DIR",
        callback=lambda ctx, param, value: value.absolute() if value else None,
        help="The state folder. [default: $HOTVIRT_STATE_DIR, else the XDG state folder]",
    )(function)


def kubeconfig_option(function: F) -> F:
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Which cluster. [default: $KUBECONFIG, else what `hotvirt up` wrote]",
    )(function)


def namespace_option(function: F) -> F:
    return click.option("-n", "--namespace", metavar="NS", help="The VM's namespace.")(function)


def output_option(function: F) -> F:
    return click.option(
        "-o", "--output", type=click.Choice(["json", "yaml"]), help="Print for programs instead of people."
    )(function)


def vm_argument(function: F) -> F:
    return click.argument("vm", metavar="VM", shell_complete=complete_vm)(function)


def complete_vm(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of the VMs for the shell; silent when the API does not answer at once."""
    from hotvirt.kube.errors import ApiError

    from .api import connect
    from .failures import CliError

    try:
        api = connect(ctx.params.get("kubeconfig"), timeout=2.0)
        namespace = ctx.params.get("namespace") or api.namespace
        found = api.get(f"/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines")
    except (ApiError, CliError):
        return []
    names = [item["metadata"]["name"] for item in found["items"]]
    return [name for name in names if name.startswith(incomplete)]
