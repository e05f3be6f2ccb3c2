"""Which form of an answer the client wants: the objects, Tables of them, or their metadata alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .errors import StatusError


@dataclass(frozen=True)
class Form:
    """`object`, `table` or `metadata`, with the version of meta.k8s.io that was asked for."""

    name: str = "object"
    version: str = "v1"


_AS = {"Table": "table", "PartialObjectMetadata": "metadata", "PartialObjectMetadataList": "metadata"}
_VERSIONS = ("v1", "v1beta1")
_JSON_LIKE = {"application/json", "application/*", "*/*"}


@lru_cache(256)
def negotiate(accept: str) -> Form:
    """The first form of an Accept header that can be given."""
    for clause in accept.split(",") if accept.strip() else ["*/*"]:
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media not in _JSON_LIKE:
            continue
        options = dict(part.partition("=")[::2] for part in parameters)
        if "as" not in options:
            return Form()
        version = options.get("v", "v1")
        if options.get("g", "meta.k8s.io") == "meta.k8s.io" and options["as"] in _AS and version in _VERSIONS:
            return Form(_AS[options["as"]], version)
    raise not_acceptable("application/json, application/yaml, application/vnd.kubernetes.protobuf")


def not_acceptable(accepted: str) -> StatusError:
    return StatusError(406, "NotAcceptable", f"only the following media types are accepted: {accepted}", {})
