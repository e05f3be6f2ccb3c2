"""How long to wait before trying again: doubling, with jitter, so that many clients do not return at once."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Each `next()` is longer, up to `maximum`; `reset()` after a success. `rng` is replaced in tests."""

    def __init__(
        self,
        initial: float = 0.2,
        maximum: float = 30.0,
        factor: float = 2.0,
        jitter: float = 0.5,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.initial = initial
        self.maximum = maximum
        self.factor = factor
        self.jitter = jitter
        self._rng = rng
        self._current = initial

    def next(self) -> float:
        delay = self._current
        self._current = min(self._current * self.factor, self.maximum)
        return delay * (1 + self.jitter * self._rng())

    def reset(self) -> None:
        self._current = self.initial
