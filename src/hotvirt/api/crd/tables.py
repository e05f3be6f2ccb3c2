"""Reads the tables that lie beside this file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

# Ten times as fast, where PyYAML was built with it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def table(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.load(files(__package__).joinpath(name).read_text(), _LOADER)
    return content
