"""The objects that the suite writes: a kind of its own, and small built-in ones."""

from __future__ import annotations

from typing import Any

GROUP = "conformance.hotvirt.io"
# A name like any other to most servers; one that runs Hotvirt's Pods alone admits no other.
IMAGE = "hotvirt/launcher:1"
OTHER_IMAGE = "hotvirt/launcher:2"
# Where there are controllers, each namespace gets a ConfigMap from them, sooner or later.
OURS = "metadata.name!=kube-root-ca.crt"
WIDGETS_CRD = f"widgets.{GROUP}"

_WIDGET_SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 100, "description": "How large the widget is."},
        "color": {"type": "string", "enum": ["red", "green", "blue"], "default": "red"},
        "nick": {"type": "string", "maxLength": 10, "pattern": "^[a-z]*$"},
        "port": {"x-kubernetes-int-or-string": True},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "nullable": {"type": "string", "nullable": True},
        "part": {
            "type": "object",
            "properties": {
                "weight": {"type": "integer", "default": 5},
                "label": {"type": "string"},
            },
        },
        "parts": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "count": {"type": "integer", "default": 1},
                },
            },
        },
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "due": {"type": "string", "format": "date-time"},
    },
}

_WIDGET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Widget is what the suite creates, changes and deletes.",
    "properties": {
        "spec": _WIDGET_SPEC,
        "status": {
            "type": "object",
            "properties": {
                "phase": {"type": "string"},
                "conditions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                    },
                },
            },
        },
    },
}

_WIDGET_COLUMNS = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Color", "type": "string", "jsonPath": ".spec.color", "description": "What it looks like."},
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase", "priority": 1},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def crd(
    plural: str, kind: str, schema: dict[str, Any] | None = None, *, group: str = GROUP, **version: Any
) -> dict[str, Any]:
    """A CustomResourceDefinition with one version, v1."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema or {"type": "object"}},
                }
                | version
            ],
        },
    }


def widgets_crd() -> dict[str, Any]:
    made = crd(
        "widgets",
        "Widget",
        _WIDGET_SCHEMA,
        subresources={"status": {}},
        additionalPrinterColumns=_WIDGET_COLUMNS,
    )
    made["spec"]["names"] |= {"shortNames": ["wd"], "categories": ["conformance"]}
    return made


def widget(name: str = "one", *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if labels:
        metadata["labels"] = labels
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Widget",
        "metadata": metadata,
        "spec": {"size": 1} | spec,
    }


def configmap(
    name: str = "one", data: dict[str, str] | None = None, *, labels: dict[str, str] | None = None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {"key": "value"}}


def pod(name: str = "one", *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A Pod that no scheduler takes: it stays as it is written."""
    container = {
        "name": "main",
        "image": IMAGE,
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    metadata: dict[str, Any] = {"name": name}
    if labels:
        metadata["labels"] = labels
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "nobody", "containers": [container]} | spec,
    }
