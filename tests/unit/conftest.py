"""What several of the unit tests ask for."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def open_files() -> Callable[[], int]:
    """How many this process has open. What earlier tests left to the garbage collector is closed before the
    first look, and not between two.
    """
    gc.collect()
    return lambda: len(list(Path("/proc/self/fd").iterdir()))
