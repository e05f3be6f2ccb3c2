"""`python -m hotvirt.api.crd [FOLDER]` writes the CRDs (default: deploy/crds of the checkout)."""

import sys
from pathlib import Path

from hotvirt.api.crd.generate import write

CHECKOUT = Path(__file__).parents[4]

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKOUT / "deploy" / "crds"
for path in write(folder):
    print(path)
