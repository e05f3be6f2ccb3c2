"""CustomResourceDefinitions, generated from the types and the table of upstream field names."""

from hotvirt.api.crd.generate import crds
from hotvirt.api.crd.unacted import unacted_fields

__all__ = ["crds", "unacted_fields"]
