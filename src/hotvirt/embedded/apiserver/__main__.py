"""The bare API server, for development and tests: no controllers, no node, no admission."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from pathlib import Path

import uvloop

from hotvirt.embedded.pki import Pki
from hotvirt.embedded.state import StateDir, StateError

from .server import ApiServer
from .store import Store, StoreError


async def serve(state: StateDir, port: int) -> None:
    pki = Pki.open(state.pki)
    server = ApiServer(Store(state.database), pki, socket=state.socket, audit_log=state.audit_log)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    await server.start(port)
    gc.freeze()
    pki.write_kubeconfig(state.kubeconfig, server.url)
    print(f"{server.url}  KUBECONFIG={state.kubeconfig}", flush=True)
    await stopped.wait()
    await server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hotvirt.embedded.apiserver", description=__doc__)
    parser.add_argument(
        "--state-dir", type=Path, required=True, help="where the objects and the kubeconfig are kept"
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    arguments = parser.parse_args()
    logging.basicConfig(level=os.environ.get("HOTVIRT_LOG", "WARNING"), format="%(levelname)s %(message)s")
    state = StateDir(arguments.state_dir.absolute())
    try:
        state.prepare()
        with state.locked(), contextlib.suppress(KeyboardInterrupt):
            uvloop.run(serve(state, arguments.port))
    except (StateError, StoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
