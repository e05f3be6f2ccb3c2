"""The Secret with the certificates: what of it can be used, and what a leader leaves behind."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime

import pytest

from hotvirt.api import names
from hotvirt.api.core import Secret
from hotvirt.cluster.certificates import CA_KEY, KEY, Keeper, SecretSource, as_data, held_in
from hotvirt.cluster.lifetimes import Lifetimes, due
from tests.inprocess import api, quick_folder

LIFETIMES = Lifetimes()


def made() -> dict[str, str]:
    return as_data(due(None, LIFETIMES, datetime.now(UTC)))


def test_what_was_made_can_be_used() -> None:
    data = made()
    held = held_in(Secret(data=data))
    assert held is not None
    assert as_data(held) == data


@pytest.mark.parametrize("part", [KEY, CA_KEY])
def test_a_key_of_another_certificate_is_replaced(part: str) -> None:
    """Shown, it would break every connection: the leader makes all anew, as for an empty Secret."""
    assert held_in(Secret(data=made() | {part: made()[part]})) is None


@pytest.mark.parametrize("broken", ["", "no base64!", base64.b64encode(b"no PEM").decode()])
def test_rubbish_is_replaced(broken: str) -> None:
    assert held_in(Secret(data=made() | {KEY: broken})) is None


@pytest.mark.asyncio
async def test_a_lead_that_ends_leaves_no_handler_behind() -> None:
    with quick_folder() as folder:
        async with api(folder) as cluster:
            client = cluster.client(names.CONTROLLER_USER)
            source = SecretSource(client)
            following = asyncio.create_task(source.run(lambda: None))
            await source.informer.synced()
            handlers = source.informer._handlers
            before = len(handlers)
            for _ in range(2):
                leading = asyncio.create_task(Keeper(client, source, LIFETIMES).run())
                await asyncio.sleep(0)  # it begins
                assert len(handlers) == before + 1
                leading.cancel()
                await asyncio.wait([leading])
                assert len(handlers) == before
            following.cancel()
            await asyncio.wait([following])
