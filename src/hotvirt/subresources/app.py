"""The aggregated API `subresources.kubevirt.io`: verbs of VMs and VMIs, their discovery, and what is missing.

The paths are relative to `/apis/subresources.kubevirt.io`, where the application is mounted. It reads and
writes through the Kubernetes API only; the console's bytes come from the node agents (`streams`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from hotvirt import __version__
from hotvirt.kube.client import Client
from hotvirt.kube.errors import ApiError

from . import vm_verbs, vmi_verbs
from .console import STREAMS, Streams, console
from .requests import CLIENT, GROUP, not_implemented

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger(__name__)
VERSIONS: Final = ("v1", "v1alpha3")
DISCOVERY: Final = web.AppKey("discovery", dict[str, list[dict[str, Any]]])
"""For whoever mounts the application: the resources of each version, in discovery's words."""

VM_VERBS: Final[dict[str, tuple[str, Handler]]] = {
    "start": ("PUT", vm_verbs.start),
    "stop": ("PUT", vm_verbs.stop),
    "restart": ("PUT", vm_verbs.restart),
}
VMI_VERBS: Final[dict[str, tuple[str, Handler]]] = {
    "pause": ("PUT", vmi_verbs.pause),
    "unpause": ("PUT", vmi_verbs.unpause),
    "softreboot": ("PUT", vmi_verbs.soft_reboot),
    "reset": ("PUT", vmi_verbs.reset),
    "guestosinfo": ("GET", vmi_verbs.guest_os_info),
    "console": ("GET", console),
}
# Verbs of KubeVirt that Hotvirt does not have, with what to do instead.
VM_MISSING: Final = {
    "migrate": "Hotvirt has no live migration yet; a resize needs none.",
    "evacuate": "Hotvirt has no live migration yet.",
    "expand-spec": "Hotvirt has no instance types yet: the VM's spec is already whole.",
    "addvolume": "Hotvirt has no volume hot-plug yet: add it to the VM's template and restart the VM.",
    "removevolume": "Hotvirt has no volume hot-plug yet: take it out of the template and restart the VM.",
    "memorydump": "Hotvirt has no memory dumps.",
    "removememorydump": "Hotvirt has no memory dumps.",
    "portforward": "Every port of the guest answers at the Pod's address.",
    "objectgraph": "Hotvirt has no object graph.",
}
VMI_MISSING: Final = {
    "addvolume": VM_MISSING["addvolume"],
    "removevolume": VM_MISSING["removevolume"],
    "freeze": "Hotvirt does not freeze file systems.",
    "unfreeze": "Hotvirt does not freeze file systems.",
    "vnc": "Hotvirt has no graphical console: use the serial console.",
    "usbredir": "Hotvirt has no USB redirection.",
    "vsock": "Hotvirt has no vsock.",
    "portforward": VM_MISSING["portforward"],
    "userlist": "Hotvirt does not list the guest's users.",
    "filesystemlist": "Hotvirt does not list the guest's file systems.",
    "objectgraph": VM_MISSING["objectgraph"],
    "backup": "Hotvirt has no backups.",
    "sev": "Hotvirt has no encrypted guests.",
    "evacuate": VM_MISSING["evacuate"],
}


def make_app(client: Client, streams: Streams) -> web.Application:
    app = web.Application(middlewares=[say_errors_as_status])
    app[CLIENT] = client
    app[STREAMS] = streams
    app[DISCOVERY] = {version: resource_list(version)["resources"] for version in VERSIONS}
    for path in ("", "/"):
        app.router.add_get(path, group)
    for version in VERSIONS:
        app.router.add_get(f"/{version}", resources(version))
        app.router.add_get(f"/{version}/version", version_info)
        app.router.add_get(f"/{version}/healthz", healthz)
        for plural, verbs, missing in (
            ("virtualmachines", VM_VERBS, VM_MISSING),
            ("virtualmachineinstances", VMI_VERBS, VMI_MISSING),
        ):
            where = f"/{version}/namespaces/{{namespace}}/{plural}/{{name}}"
            for verb, (method, handler) in verbs.items():
                app.router.add_route(method, f"{where}/{verb}", handler)
            for verb, sentence in missing.items():
                for rest in ("", "/{rest:.*}"):
                    app.router.add_route("*", f"{where}/{verb}{rest}", refuse_with(verb, sentence))
    app.router.add_route("*", "/{unknown:.*}", unknown)
    return app


def refuse_with(verb: str, sentence: str) -> Handler:
    async def handler(_request: web.Request) -> web.StreamResponse:
        not_implemented(f"{verb} is not available. {sentence}")

    return handler


async def unknown(request: web.Request) -> web.StreamResponse:
    raise ApiError(404, "NotFound", f"{GROUP} has nothing at {request.method} {request.path}")


@web.middleware
async def say_errors_as_status(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return status_response(error)
    except web.HTTPException as error:
        return status_response(
            ApiError(error.status, error.reason.replace(" ", ""), error.text or error.reason)
        )
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return status_response(
            ApiError(500, "InternalError", "Hotvirt failed to answer this request; its log says more.")
        )


def status_response(error: ApiError) -> web.Response:
    body = error.status()
    if not error.code:
        body |= {"code": 503, "reason": "ServiceUnavailable"}
    return web.json_response(body, status=body["code"])


async def group(_request: web.Request) -> web.Response:
    served = [{"groupVersion": f"{GROUP}/{version}", "version": version} for version in VERSIONS]
    return web.json_response(
        {
            "kind": "APIGroup",
            "apiVersion": "v1",
            "name": GROUP,
            "versions": served,
            "preferredVersion": served[0],
        }
    )


def resource_list(version: str) -> dict[str, Any]:
    """What discovery says of one version."""
    kinds = (
        ("virtualmachines", VM_VERBS, "VirtualMachine"),
        ("virtualmachineinstances", VMI_VERBS, "VirtualMachineInstance"),
    )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{version}",
        "resources": [
            {
                "name": f"{plural}/{verb}",
                "singularName": "",
                "namespaced": True,
                "kind": kind,
                "group": GROUP,
                "version": version,
                "verbs": ["update"] if method == "PUT" else ["get"],
            }
            for plural, verbs, kind in kinds
            for verb, (method, _) in verbs.items()
        ],
    }


def resources(version: str) -> Handler:
    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.json_response(resource_list(version))

    return handler


async def version_info(_request: web.Request) -> web.Response:
    return web.json_response(
        {"gitVersion": f"v{__version__}", "platform": "linux/amd64", "compiler": "python"}
    )


async def healthz(_request: web.Request) -> web.Response:
    return web.json_response({"apiserver": {"connectivity": "ok"}})
