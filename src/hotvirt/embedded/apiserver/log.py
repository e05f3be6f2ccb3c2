"""The one logger of the API server."""

import logging

logger = logging.getLogger("hotvirt.embedded.apiserver")
