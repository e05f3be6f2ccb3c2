"""hack/cluster: start, stop and use a test cluster by hand."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from . import bed
from .bed_layout import NODE


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HOTVIRT_CACHE") or Path(cache) / "hotvirt") / "cluster"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hack/cluster", description="A real Kubernetes cluster of one node on this machine."
    )
    parser.add_argument(
        "--dir", type=Path, default=default_folder(), help="its folder (default: %(default)s)"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="start it, or find it running; stop it with `down`")
    verbs.add_parser("down", help="stop it and remove everything that it made")
    verbs.add_parser("env", help='for eval "$(hack/cluster env)": kubectl and ctr then use it')
    importing = verbs.add_parser("import", help="import image archives (docker or OCI)")
    importing.add_argument("archives", nargs="+", type=Path)
    entering = verbs.add_parser("enter", help="run a command on the node (default: a shell)")
    entering.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args()


def running(folder: Path) -> bed.Bed:
    if found := bed.find(folder.resolve()):
        return found
    failure = folder / "failure"
    why = f" It ended by itself: {failure.read_text().strip()}" if failure.exists() else ""
    raise bed.CannotStart(f"No cluster runs in {folder}; start it with `hack/cluster up`.{why}")


def show_environment(cluster: bed.Bed) -> None:
    for name, value in cluster.environment.items():
        shown = f"{cluster.layout.programs}:$PATH:/usr/sbin:/sbin" if name == "PATH" else value
        print(f'export {name}="{shown}"')


def main() -> int:
    asked = arguments()
    try:
        if asked.verb == "up":
            started = time.monotonic()
            cluster = bed.start(asked.dir, keep=True)
            print(
                f"{NODE} is ready after {time.monotonic() - started:.0f} s. In your shell:", file=sys.stderr
            )
            show_environment(cluster)
        elif asked.verb == "down":
            bed.stop(asked.dir)
        elif asked.verb == "env":
            show_environment(running(asked.dir))
        elif asked.verb == "import":
            running(asked.dir).import_images(*asked.archives)
        else:
            return subprocess.run(running(asked.dir).enter(*(asked.command or ["bash"]))).returncode
    except (bed.CannotStart, RuntimeError, TimeoutError) as failure:
        print(f"hack/cluster: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
