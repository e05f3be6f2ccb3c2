"""A copy of JSON values, by way of JSON: 6 times as fast as `copy.deepcopy`, which tracks shared objects."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def copied(value: Any) -> Any:
    return _decode(_encode(value)) if isinstance(value, dict | list | tuple) else value
