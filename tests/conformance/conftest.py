"""The fixtures of the behaviour suite: the API under test and a namespace for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from tests.targets.target import Target

from .client import Api
from .objects import GROUP, widgets_crd


@dataclass(frozen=True)
class Namespace:
    """The collections of one namespace, by their paths."""

    name: str

    def path(self, resource: str, group_version: str = "v1") -> str:
        root = "/api/v1" if group_version == "v1" else f"/apis/{group_version}"
        return f"{root}/namespaces/{self.name}/{resource}"

    @property
    def widgets(self) -> str:
        return self.path("widgets", f"{GROUP}/v1")

    @property
    def configmaps(self) -> str:
        return self.path("configmaps")

    @property
    def pods(self) -> str:
        return self.path("pods")


@pytest.fixture(scope="session")
def prepared(target: Target) -> Target:
    target.install_crd(widgets_crd())
    target.wait_until_described(f"{GROUP}/v1")
    return target


@pytest_asyncio.fixture
async def api(prepared: Target) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(auto_decompress=True) as session:
        yield Api(prepared, session)


@pytest.fixture
def unique() -> str:
    """A name that nothing else has, for objects outside of namespaces."""
    return f"conformance-{uuid.uuid4().hex[:10]}"


@pytest_asyncio.fixture
async def ns(api: Api, unique: str) -> AsyncIterator[Namespace]:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}}
    await api.create("/api/v1/namespaces", body)
    yield Namespace(unique)
    await api.delete(f"/api/v1/namespaces/{unique}")
