"""Lists: pages, resourceVersions, what they match."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Api
from .conftest import Namespace
from .objects import GROUP, OURS, configmap, widget


def names(listed: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


async def make(api: Api, ns: Namespace, *wanted: str) -> None:
    for name in wanted:
        await api.create(ns.widgets, widget(name))


async def test_a_list_says_its_kind_and_version(api: Api, ns: Namespace) -> None:
    await make(api, ns, "a")
    listed = (await api.get(ns.widgets)).ok()
    assert (listed["kind"], listed["apiVersion"]) == ("WidgetList", f"{GROUP}/v1")
    made = int(listed["items"][0]["metadata"]["resourceVersion"])
    assert int(listed["metadata"]["resourceVersion"]) >= made


async def test_items_of_a_custom_resource_have_kind_and_version(api: Api, ns: Namespace) -> None:
    await make(api, ns, "a")
    (item,) = (await api.get(ns.widgets)).ok()["items"]
    assert (item["kind"], item["apiVersion"]) == ("Widget", f"{GROUP}/v1")


async def test_items_of_a_built_in_kind_have_neither(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap())
    listed = (await api.get(ns.configmaps, fieldSelector=OURS)).ok()
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    (item,) = listed["items"]
    assert "kind" not in item
    assert "apiVersion" not in item


async def test_a_list_is_in_the_order_of_names(api: Api, ns: Namespace) -> None:
    await make(api, ns, "c", "a", "b")
    assert names((await api.get(ns.widgets)).ok()) == ["a", "b", "c"]


async def test_an_empty_list_has_items(api: Api, ns: Namespace) -> None:
    listed = (await api.get(ns.widgets)).ok()
    assert listed["items"] == []
    assert int(listed["metadata"]["resourceVersion"]) > 0


async def test_a_list_of_all_namespaces_has_every_one(api: Api, ns: Namespace) -> None:
    await make(api, ns, "a")
    listed = (await api.get(f"/apis/{GROUP}/v1/widgets", fieldSelector=f"metadata.namespace={ns.name}")).ok()
    assert names(listed) == ["a"]


async def test_limit_gives_pages_and_what_remains(api: Api, ns: Namespace) -> None:
    await make(api, ns, "a", "b", "c", "d", "e")
    first = (await api.get(ns.widgets, limit=2)).ok()
    assert names(first) == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    second = (await api.get(ns.widgets, **{"limit": 2, "continue": first["metadata"]["continue"]})).ok()
    assert names(second) == ["c", "d"]
    assert second["metadata"]["remainingItemCount"] == 1
    third = (await api.get(ns.widgets, **{"limit": 2, "continue": second["metadata"]["continue"]})).ok()
    assert names(third) == ["e"]
    assert "remainingItemCount" not in third["metadata"]
    assert not third["metadata"].get("continue")


async def test_a_page_that_holds_all_has_no_continue(api: Api, ns: Namespace) -> None:
    await make(api, ns, "a", "b")
    listed = (await api.get(ns.widgets, limit=2)).ok()
    assert names(listed) == ["a", "b"]
    assert not listed["metadata"].get("continue")


async def test_pages_are_of_one_moment(api: Api, ns: Namespace) -> None:
    await make(api, ns, "a", "b", "c")
    first = (await api.get(ns.widgets, limit=1)).ok()
    await make(api, ns, "aa")
    (await api.delete(f"{ns.widgets}/c")).ok()
    rest = (await api.get(ns.widgets, **{"continue": first["metadata"]["continue"]})).ok()
    assert names(rest) == ["b", "c"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_pages_with_a_selector_do_not_say_what_remains(api: Api, ns: Namespace) -> None:
    for name in ("a", "b", "c"):
        await api.create(ns.widgets, widget(name, labels={"pick": "yes"}))
    await make(api, ns, "aa")
    first = (await api.get(ns.widgets, limit=2, labelSelector="pick=yes")).ok()
    assert names(first) == ["a", "b"]
    assert "remainingItemCount" not in first["metadata"]
    more = {"labelSelector": "pick=yes", "continue": first["metadata"]["continue"]}
    assert names((await api.get(ns.widgets, **more)).ok()) == ["c"]


async def test_a_continue_that_is_none_is_400(api: Api, ns: Namespace) -> None:
    status = (await api.get(ns.widgets, **{"limit": 1, "continue": "nonsense"})).refused(400, "BadRequest")
    assert "continue key is not valid" in status["message"]


async def test_a_continue_with_a_resource_version_is_refused(api: Api, ns: Namespace) -> None:
    await make(api, ns, "a", "b")
    first = (await api.get(ns.widgets, limit=1)).ok()
    both = {"continue": first["metadata"]["continue"], "resourceVersion": "1", "limit": 1}
    (await api.get(ns.widgets, **both)).refused(400, "BadRequest")


@pytest.mark.parametrize("parameter", [{"limit": "abc"}, {"timeoutSeconds": "abc"}])
async def test_a_number_that_is_none_is_400(api: Api, ns: Namespace, parameter: dict[str, str]) -> None:
    (await api.get(ns.widgets, **parameter)).refused(400, "BadRequest")


async def test_resource_version_zero_is_any_moment(api: Api, ns: Namespace) -> None:
    assert (await api.get(ns.widgets, resourceVersion="0")).ok()["kind"] == "WidgetList"


async def test_not_older_than_a_version_has_it(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget("a"))
    version = made["metadata"]["resourceVersion"]
    listed = (await api.get(ns.widgets, resourceVersion=version)).ok()
    assert names(listed) == ["a"]
    same = await api.get(ns.widgets, resourceVersion=version, resourceVersionMatch="NotOlderThan")
    assert names(same.ok()) == ["a"]


async def test_exact_gives_the_list_of_that_moment(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget("a"))
    await make(api, ns, "b")
    (await api.patch(f"{ns.widgets}/a", {"spec": {"size": 9}})).ok()
    version = made["metadata"]["resourceVersion"]
    listed = (await api.get(ns.widgets, resourceVersion=version, resourceVersionMatch="Exact")).ok()
    assert names(listed) == ["a"]
    assert listed["items"][0]["spec"]["size"] == 1
    assert listed["metadata"]["resourceVersion"] == version


async def test_exact_of_a_forgotten_moment_is_410(api: Api, ns: Namespace) -> None:
    answer = await api.get(ns.configmaps, resourceVersion="1", resourceVersionMatch="Exact")
    status = answer.refused(410, "Expired")
    assert (
        status["message"] == ("The resourceVersion for the provided list is too old.")
        or "too old" in status["message"]
    )


async def test_a_version_newer_than_now_is_504(api: Api, ns: Namespace) -> None:
    status = (await api.get(ns.widgets, resourceVersion="999999999")).refused(504, "Timeout")
    assert status["message"].startswith("Timeout: Too large resource version: 999999999, current: ")
    assert status["details"]["causes"] == [
        {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    ]
    assert status["details"]["retryAfterSeconds"] == 1


async def test_a_version_that_is_no_number_is_refused(api: Api, ns: Namespace) -> None:
    answer = await api.get(ns.widgets, resourceVersion="abc")
    status = answer.refused(400, "BadRequest")
    assert "abc" in status["message"]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"resourceVersionMatch": "Exact"}, "resourceVersionMatch"),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "0"}, "resourceVersionMatch"),
        ({"resourceVersionMatch": "Sometimes", "resourceVersion": "5"}, "resourceVersionMatch"),
    ],
)
async def test_resource_version_match_is_checked(
    api: Api, ns: Namespace, parameters: dict[str, str], field: str
) -> None:
    status = (await api.get(ns.widgets, **parameters)).refused(422, "Invalid")
    assert {cause["field"] for cause in status["details"]["causes"]} == {field}


async def test_a_get_may_ask_for_a_version(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget("a"))
    version = made["metadata"]["resourceVersion"]
    assert (await api.get(f"{ns.widgets}/a", resourceVersion=version)).ok() == made
    assert (await api.get(f"{ns.widgets}/a", resourceVersion="0")).status in (200, 404)
