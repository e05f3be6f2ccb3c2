"""How a process that holds large copies of the API's objects treats its memory."""

from __future__ import annotations

import gc


def quiet_the_collector() -> None:
    """Caches are large and live for ever: the collector need not walk them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
