"""Between the wire and typed objects.

Typed views ignore fields they do not know and read a null as "not set", as Kubernetes does. They are for
reading: whoever writes an object back writes a patch, so that nothing a user wrote is lost.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from hotvirt.api.meta import Kind
from hotvirt.api.quantity import Quantity

T = TypeVar("T")


# Objects are full of the same few amounts, and amounts never change.
_quantity = lru_cache(4096)(Quantity)


def _decode_hook(wanted: type, value: Any) -> Any:
    if wanted is Quantity:
        if isinstance(value, float):
            value = repr(value)
        if isinstance(value, int | str) and not isinstance(value, bool):
            return _quantity(value)
        raise ValueError(f"expected a quantity, like 1Gi or 500m, got {value!r}")
    raise NotImplementedError(f"no decoder for {wanted!r}")


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Quantity):
        return str(value)
    raise NotImplementedError(f"no encoder for {type(value)!r}")


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(cls: Any) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(cls)
    if decoder is None:
        decoder = _decoders[cls] = msgspec.json.Decoder(cls, dec_hook=_decode_hook)
    return decoder


_encoder = msgspec.json.Encoder(enc_hook=_encode_hook)


def without_nulls(value: Any) -> Any:
    """A copy without the fields that are null, at every depth."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value]
    return value


_last: dict[Any, tuple[bytes | str, Any]] = {}
"""What was decoded last of each class. One change of an object comes to every cache in this process, and as
the answer to its writer: they share one view, which nobody can change.
"""


def decode(data: bytes | str, cls: type[T]) -> T:
    """JSON to a typed object."""
    last = _last.get(cls)
    if last is not None and last[0] == data:
        found: T = last[1]
        return found
    try:
        decoded: T = _decoder(cls).decode(data)
    except msgspec.ValidationError:
        # A null where the type has a plain default is the rare case: pay for the copy only then.
        decoded = msgspec.convert(without_nulls(msgspec.json.decode(data)), cls, dec_hook=_decode_hook)
    if issubclass(cls, Kind):
        _last[cls] = data, decoded
    return decoded


def convert(obj: Any, cls: type[T]) -> T:
    """Builtins (dicts, lists, ...) to a typed object; a typed object of that class is returned as it is."""
    if isinstance(obj, cls):
        return obj
    try:
        return msgspec.convert(obj, cls, dec_hook=_decode_hook)
    except msgspec.ValidationError:
        return msgspec.convert(without_nulls(obj), cls, dec_hook=_decode_hook)


def builtins(obj: Any) -> Any:
    """A typed object as dicts and lists; a kind always carries its apiVersion and kind."""
    # Through JSON, so that lists come back as lists: a tuple never equals what the API server sends.
    plain = msgspec.json.decode(_encoder.encode(obj))
    api_version = getattr(obj, "api_version", None)
    kind = getattr(obj, "kind", None)
    if isinstance(plain, dict) and isinstance(obj, msgspec.Struct) and api_version and kind:
        return {"apiVersion": api_version, "kind": kind, **plain}
    return plain


def encode(obj: Any) -> bytes:
    """A typed object, or builtins that may hold typed objects, to JSON."""
    if isinstance(obj, msgspec.Struct):
        return _encoder.encode(builtins(obj))
    return _encoder.encode(obj)
