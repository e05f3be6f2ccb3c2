"""A small client on the standard library, for commands that send a request or two: it starts at once."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from hotvirt.kube.config import ClientConfig, ConfigError, load_kubeconfig
from hotvirt.kube.errors import ApiError, NotFound, Unreachable, error_for

from .failures import FAILED, NOT_FOUND, UNREACHABLE, CliError

SECONDS = 30.0
WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


class Api:
    def __init__(self, config: ClientConfig, timeout: float = SECONDS) -> None:
        self.config = config
        self._timeout = timeout
        self._url = urlsplit(config.server)
        self._tls = config.ssl_context()
        self.warnings: list[str] = []
        """What the server told us beside its answers, all so far."""

    @property
    def namespace(self) -> str:
        return self.config.namespace

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "localhost", self._url.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=self._timeout)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any, content_type: str
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "hotvirt-cli"}
        if token := self.config.bearer_token():
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = content_type
        try:
            connection.request(method, self._url.path + path, data, headers)
            answer = connection.getresponse()
            self.warnings += _warnings(answer)
            if answer.status >= 300:
                raise error_for(answer.status, _decode(answer.read()))
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"The API at {self.config.server} cannot be reached: {error}.") from error
        return answer

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        connection = self._connect()
        try:
            full = f"{path}?{urlencode(params)}" if params else path
            return _decode(self._send(connection, method, full, body, content_type).read())
        except OSError as error:
            raise Unreachable(f"The API at {self.config.server} broke off: {error}.") from error
        finally:
            connection.close()

    def get(self, path: str, **params: str) -> Any:
        return self.request("GET", path, params=params or None)

    def watch(self, path: str, version: str, name: str = "") -> Iterator[dict[str, Any]]:
        """The events after `version`, of one object or all, until the server ends the watch or falls silent
        for too long.
        """
        connection = self._connect()
        try:
            params = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
            if name:
                params["fieldSelector"] = f"metadata.name={name}"
            query = urlencode(params)
            answer = self._send(connection, "GET", f"{path}?{query}", None, "")
            while line := answer.readline():
                event: dict[str, Any] = json.loads(line)
                if event["type"] == "ERROR":
                    raise error_for(500, event["object"])
                yield event
        except TimeoutError:
            return
        except OSError as error:
            raise Unreachable(f"The API at {self.config.server} broke off: {error}.") from error
        finally:
            connection.close()


def _warnings(answer: http.client.HTTPResponse) -> list[str]:
    """The texts of the Warning headers, which are UTF-8 although the library reads Latin-1."""
    found = []
    for header in answer.headers.get_all("Warning") or ():
        text = str(header).encode("latin-1", "replace").decode(errors="replace")
        found += [each.replace('\\"', '"').replace("\\\\", "\\") for each in WARNING.findall(text)]
    return found


def _decode(body: bytes) -> Any:
    try:
        return json.loads(body) if body else {}
    except ValueError:
        return body.decode(errors="replace").strip()


def connect(kubeconfig: Path | None, state_dir: Path | None = None, timeout: float = SECONDS) -> Api:
    """By --kubeconfig, else KUBECONFIG, else what `hotvirt up` wrote into the state folder."""
    path = kubeconfig
    if path is None and not os.environ.get("KUBECONFIG"):
        from hotvirt.embedded.state import StateDir, default_state_dir

        path = StateDir(state_dir or default_state_dir()).kubeconfig
        if not path.exists():
            raise CliError(
                "There is no API to talk to: start one with `hotvirt up`, or name one with KUBECONFIG "
                "or --kubeconfig.",
                UNREACHABLE,
            )
    try:
        return Api(load_kubeconfig(path), timeout)
    except ConfigError as error:
        raise CliError(str(error)) from error


def cli_error(error: ApiError) -> CliError:
    """What to say about a refusal."""
    if isinstance(error, Unreachable):
        return CliError(f"{error.message} Is Hotvirt running? Start it with: hotvirt up", UNREACHABLE)
    if isinstance(error, NotFound):
        return CliError(_sentence(error.message), NOT_FOUND)
    return CliError(_sentence(error.message), FAILED)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."
