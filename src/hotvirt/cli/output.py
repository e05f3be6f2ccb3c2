"""Tables for people, JSON and YAML for programs."""

from __future__ import annotations

import json
from typing import Any

import click


def show(data: Any, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(data, indent=2))
        return
    import yaml

    click.echo(yaml.safe_dump(data, sort_keys=False), nl=False)


def table(headers: list[str], rows: list[list[str]]) -> None:
    """Columns as kubectl prints them."""
    widths = [max(len(row[at]) for row in [headers, *rows]) for at in range(len(headers))]
    for row in [headers, *rows]:
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def size(count: int) -> str:
    """Bytes for people: 12.3 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
