"""Container images from Debian packages and our wheel: no builder, no registry, no root."""
