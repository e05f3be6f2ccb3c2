"""The metadata of objects: names, labels, annotations, finalizers, and what only the server may set."""

from __future__ import annotations

import re
import secrets
import uuid
from typing import Any, Final

from hotvirt.api.meta import now

from .call import Call
from .errors import FieldError, forbidden_value, invalid_value, required_value
from .kinds import Kind

SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_PATH_SEGMENT: Final = re.compile(r"[^/%]+\Z")
SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_NAME_PART_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex "
    "used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
ANNOTATIONS_LIMIT: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = ("orphan", "foregroundDeletion", "kubernetes")
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_DNS_LABEL_KINDS: Final = frozenset(["namespaces", "services"])
_PATH_SEGMENT_GROUPS: Final = frozenset(["rbac.authorization.k8s.io"])
# Kinds whose spec has no generation to count.
GENERATION_KINDS: Final = frozenset(
    ["pods", "poddisruptionbudgets", "customresourcedefinitions", "priorityclasses"]
)


def generated_name(prefix: str) -> str:
    return prefix[:58] + "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))


def counts_generation(kind: Kind) -> bool:
    return kind.custom or kind.plural in GENERATION_KINDS


def stamp_new(kind: Kind, metadata: dict[str, Any]) -> None:
    """What the server alone decides about a new object."""
    for name in (
        "resourceVersion",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
    ):
        metadata.pop(name, None)
    metadata.pop("generation", None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now()
    if counts_generation(kind):
        metadata["generation"] = 1


def keep_old(old: dict[str, Any], new: dict[str, Any]) -> None:
    """An update cannot change these: they come from the stored object."""
    for name in (
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
    ):
        if name in old:
            new[name] = old[name]
        else:
            new.pop(name, None)
    new.pop("managedFields", None)
    new.pop("selfLink", None)


def name_problem(kind: Kind, name: str) -> str | None:
    if kind.group in _PATH_SEGMENT_GROUPS:
        return (
            None
            if _PATH_SEGMENT.match(name) and name not in (".", "..")
            else "may not be '.', '..' or contain '/' or '%'"
        )
    if kind.group == "" and kind.plural in _DNS_LABEL_KINDS:
        if len(name) > 63:
            return "must be no more than 63 characters"
        return None if LABEL.match(name) else LABEL_RULE
    if len(name) > 253:
        return "must be no more than 253 characters"
    return None if SUBDOMAIN.match(name) else SUBDOMAIN_RULE


def qualified_name_problem(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash:
        if not prefix:
            return "prefix part must be non-empty"
        if len(prefix) > 253 or not SUBDOMAIN.match(prefix):
            return f"prefix part {SUBDOMAIN_RULE}"
        if "/" in prefix:
            return "a valid label key must consist of at most one '/'"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return None if _QUALIFIED.match(name) else _NAME_PART_RULE


def validate(kind: Kind, metadata: dict[str, Any]) -> list[FieldError]:
    errors: list[FieldError] = []
    name = metadata.get("name") or ""
    if not name:
        errors.append(required_value("metadata.name", "name or generateName is required"))
    elif problem := name_problem(kind, name):
        errors.append(invalid_value("metadata.name", name, problem))
    errors += label_errors(metadata.get("labels") or {}, "metadata.labels")
    errors += _annotation_errors(metadata.get("annotations") or {})
    errors += _owner_errors(metadata.get("ownerReferences") or [])
    for finalizer in metadata.get("finalizers") or []:
        if problem := qualified_name_problem(finalizer):
            errors.append(invalid_value("metadata.finalizers", finalizer, problem))
    return errors


def label_errors(labels: dict[str, str], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for key, value in labels.items():
        if problem := qualified_name_problem(key):
            errors.append(invalid_value(path, key, problem))
        if len(value) > 63:
            errors.append(invalid_value(path, value, "must be no more than 63 bytes"))
        elif not _LABEL_VALUE.match(value):
            errors.append(invalid_value(path, value, _VALUE_RULE))
    return errors


def _annotation_errors(annotations: dict[str, str]) -> list[FieldError]:
    errors: list[FieldError] = []
    size = 0
    for key, value in annotations.items():
        size += len(key.encode()) + len(value.encode())
        if problem := qualified_name_problem(key.lower()):
            errors.append(invalid_value("metadata.annotations", key, problem))
    if size > ANNOTATIONS_LIMIT:
        errors.append(
            FieldError(
                "metadata.annotations",
                "FieldValueTooLong",
                f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes",
            )
        )
    return errors


def _owner_errors(owners: list[dict[str, Any]]) -> list[FieldError]:
    errors = [
        required_value(f"metadata.ownerReferences[{index}].{field}", "must not be empty")
        for index, owner in enumerate(owners)
        for field in ("apiVersion", "kind", "name", "uid")
        if not owner.get(field)
    ]
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        first, second = (f"{owner['kind']}/{owner['name']}" for owner in controllers[:2])
        errors.append(
            invalid_value(
                "metadata.ownerReferences",
                owners,
                'Only one reference can have Controller set to true. Found "true" in references for '
                f"{first} and {second}",
            )
        )
    return errors


def finalizer_errors(old: dict[str, Any], new: dict[str, Any]) -> list[FieldError]:
    """Nobody may add a finalizer to what is being deleted."""
    if not old.get("deletionTimestamp"):
        return []
    added = [one for one in new.get("finalizers") or [] if one not in (old.get("finalizers") or [])]
    if not added:
        return []
    named = ", ".join(f'"{one}"' for one in added)
    return [
        forbidden_value(
            "metadata.finalizers",
            "no new finalizers can be added if the object is being deleted, found new finalizers "
            f"[]string{{{named}}}",
        )
    ]


def warn_of_finalizers(call: Call, metadata: dict[str, Any], old: dict[str, Any]) -> None:
    """Names without a domain are taken, with a word of advice."""
    for name in metadata.get("finalizers") or []:
        if "/" in name or name in _STANDARD_FINALIZERS or name in (old.get("finalizers") or []):
            continue
        path = " including a path (/)" if "." in name else ""
        call.warn(
            f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name{path} to '
            "avoid accidental "
            "conflicts with other finalizer writers"
        )
