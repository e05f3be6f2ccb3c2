"""Stock kubectl, old and new, doing against a Kubernetes API what people do with it."""
