"""Requests that the server makes of itself: no connection, no query, no headers."""

from __future__ import annotations

from typing import Any, cast

from aiohttp import web
from multidict import CIMultiDict, MultiDict


class _Internal:
    method = "INTERNAL"
    path = ""

    def __init__(self) -> None:
        self.query: MultiDict[str] = MultiDict()
        self.headers: CIMultiDict[str] = CIMultiDict()


def InternalRequest() -> web.Request:  # reads like the class that it stands for
    return cast(web.Request, cast(Any, _Internal()))
