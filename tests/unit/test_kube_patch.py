"""The three kinds of patches, on the examples of their standards and on generated documents."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotvirt.kube.patch import (
    PatchError,
    PatchTestFailed,
    apply_json_patch,
    apply_merge_patch,
    apply_strategic_patch,
    merge_diff,
)

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~", max_size=3)
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)
without_null = st.recursive(
    st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=12,
)
documents = st.dictionaries(st.text("ab", max_size=2), json_values, max_size=4)
new_documents = st.dictionaries(st.text("ab", max_size=2), without_null, max_size=4)

# The test cases of RFC 7386, appendix A: original, patch, result.
RFC_7386 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("doc", "patch", "result"), RFC_7386)
def test_merge_patch_does_what_the_rfc_says(doc: Any, patch: Any, result: Any) -> None:
    before = deepcopy(doc)
    assert apply_merge_patch(doc, patch) == result
    assert doc == before


@given(documents, new_documents)
def test_a_diff_applied_to_the_old_gives_the_new(old: Any, new: Any) -> None:
    diff = merge_diff(old, new)
    if diff is None:
        assert old == new
    else:
        assert apply_merge_patch(old, diff) == new


@given(documents)
def test_equal_documents_have_no_difference(doc: Any) -> None:
    assert merge_diff(doc, deepcopy(doc)) is None


def test_a_diff_leaves_nulls_alone_that_did_not_change() -> None:
    assert merge_diff({"a": None, "b": 1}, {"a": None, "b": 2}) == {"b": 2}


def test_true_is_not_one() -> None:
    assert merge_diff({"a": 1}, {"a": True}) == {"a": True}


# RFC 6902, appendix A.
RFC_6902 = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    (
        {"foo": ["bar", "baz"]},
        [{"op": "add", "path": "/foo/1", "value": "qux"}],
        {"foo": ["bar", "qux", "baz"]},
    ),
    ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    (
        {"baz": "qux", "foo": "bar"},
        [{"op": "replace", "path": "/baz", "value": "boo"}],
        {"baz": "boo", "foo": "bar"},
    ),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    (
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    (
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
        {"foo": "bar", "baz": "qux"},
    ),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    (
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
    ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
]


@pytest.mark.parametrize(("doc", "ops", "result"), RFC_6902)
def test_json_patch_does_what_the_rfc_says(doc: Any, ops: Any, result: Any) -> None:
    before = deepcopy(doc)
    assert apply_json_patch(doc, ops) == result
    assert doc == before


@pytest.mark.parametrize(
    ("ops", "error"),
    [
        ([{"op": "add", "path": "/baz/bat", "value": "qux"}], PatchError),
        ([{"op": "remove", "path": "/nothing"}], PatchError),
        ([{"op": "replace", "path": "/list/7", "value": 1}], PatchError),
        ([{"op": "add", "path": "/list/01", "value": 1}], PatchError),
        ([{"op": "test", "path": "/foo", "value": "other"}], PatchTestFailed),
        ([{"op": "test", "path": "/list/0", "value": True}], PatchTestFailed),
        ([{"op": "move", "from": "/map", "path": "/map/inside"}], PatchError),
        ([{"op": "invent", "path": "/foo"}], PatchError),
        ([{"op": "add", "path": "/foo"}], PatchError),
        ([{"op": "add", "path": "foo", "value": 1}], PatchError),
        ({"op": "add"}, PatchError),
        (["add"], PatchError),
    ],
)
def test_a_json_patch_that_cannot_be_applied_says_so(ops: Any, error: type[Exception]) -> None:
    doc = {"foo": "bar", "list": [1], "map": {"a": 1}}
    before = deepcopy(doc)
    with pytest.raises(error):
        apply_json_patch(doc, ops)
    assert doc == before


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


STRATEGIC = [
    (
        "a list merges by its key",
        pod({"name": "a", "image": "1"}, {"name": "b", "image": "1"}),
        pod({"name": "b", "image": "2"}, {"name": "c", "image": "3"}),
        pod({"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}),
    ),
    (
        "lists in items of lists merge too",
        pod({"name": "a", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 80}]}),
        pod({"name": "a", "env": [{"name": "Y", "value": "2"}], "ports": [{"containerPort": 81}]}),
        pod(
            {
                "name": "a",
                "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}],
                "ports": [{"containerPort": 80}, {"containerPort": 81}],
            }
        ),
    ),
    (
        "an item is removed by $patch: delete",
        pod({"name": "a"}, {"name": "b"}),
        pod({"name": "a", "$patch": "delete"}),
        pod({"name": "b"}),
    ),
    (
        "a list is replaced by an item $patch: replace",
        pod({"name": "a"}, {"name": "b"}),
        pod({"$patch": "replace"}, {"name": "c"}),
        pod({"name": "c"}),
    ),
    (
        "a map is replaced by $patch: replace",
        pod(nodeSelector={"a": "1", "b": "2"}),
        {"spec": {"nodeSelector": {"$patch": "replace", "c": "3"}}},
        pod(nodeSelector={"c": "3"}),
    ),
    (
        "a map is emptied by $patch: delete",
        pod(nodeSelector={"a": "1"}),
        {"spec": {"nodeSelector": {"$patch": "delete"}}},
        pod(nodeSelector={}),
    ),
    (
        "$retainKeys drops the other keys",
        pod(volumes=[{"name": "v", "emptyDir": {}}]),
        {"spec": {"volumes": [{"name": "v", "secret": {"a": 1}, "$retainKeys": ["name", "secret"]}]}},
        pod(volumes=[{"name": "v", "secret": {"a": 1}}]),
    ),
    (
        "finalizers are a set, and $deleteFromPrimitiveList takes from it",
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["b", "c"]}},
        {"metadata": {"finalizers": ["b", "c"]}},
    ),
    (
        "owners merge by uid",
        {"metadata": {"ownerReferences": [{"uid": "1", "name": "x"}]}},
        {"metadata": {"ownerReferences": [{"uid": "2", "name": "y"}]}},
        {"metadata": {"ownerReferences": [{"uid": "1", "name": "x"}, {"uid": "2", "name": "y"}]}},
    ),
    (
        "tolerations have no key and are replaced",
        pod(tolerations=[{"key": "a"}]),
        {"spec": {"tolerations": [{"key": "b"}]}},
        pod(tolerations=[{"key": "b"}]),
    ),
    (
        "conditions merge by type",
        {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "X", "status": "True"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "True"}]}},
    ),
    (
        "$setElementOrder sorts, and the server's own items stay where they were",
        pod({"name": "sidecar"}, {"name": "a"}),
        {
            "spec": {
                "$setElementOrder/containers": [{"name": "new"}, {"name": "a"}],
                "containers": [{"name": "new"}, {"name": "a", "image": "2"}],
            }
        },
        pod({"name": "new"}, {"name": "sidecar"}, {"name": "a", "image": "2"}),
    ),
    (
        "an order alone sorts",
        pod({"name": "a"}, {"name": "b"}),
        {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
        pod({"name": "b"}, {"name": "a"}),
    ),
    (
        "null removes, and directives never stay behind",
        {"spec": {"a": 1}},
        {"spec": {"a": None, "new": {"$retainKeys": ["x"], "x": 1, "y": None}}},
        {"spec": {"new": {"x": 1}}},
    ),
]


@pytest.mark.parametrize(
    ("doc", "patch", "result"), [case[1:] for case in STRATEGIC], ids=[c[0] for c in STRATEGIC]
)
def test_strategic_merge(doc: Any, patch: Any, result: Any) -> None:
    before = deepcopy(doc)
    assert apply_strategic_patch(doc, patch, "Pod") == result
    assert doc == before


def test_an_unknown_kind_still_merges_its_metadata() -> None:
    doc = {"metadata": {"finalizers": ["a"]}, "spec": {"containers": [{"name": "a"}]}}
    patch = {"metadata": {"finalizers": ["b"]}, "spec": {"containers": [{"name": "b"}]}}
    assert apply_strategic_patch(doc, patch, "Unknown") == {
        "metadata": {"finalizers": ["a", "b"]},
        "spec": {"containers": [{"name": "b"}]},
    }


@pytest.mark.parametrize(
    "patch",
    [
        [],
        {"spec": {"$patch": "invent"}},
        pod({"image": "no name"}),
        pod({"name": "a", "$patch": "invent"}),
        {"spec": {"containers": ["a"]}},
        {"spec": {"$retainKeys": "a"}},
        {"spec": {"$setElementOrder/containers": "a"}},
    ],
)
def test_a_strategic_patch_that_cannot_be_applied_says_so(patch: Any) -> None:
    with pytest.raises(PatchError):
        apply_strategic_patch(pod({"name": "a"}), patch, "Pod")


@given(documents, new_documents)
def test_without_lists_and_directives_strategic_equals_merge(doc: Any, patch: Any) -> None:
    """Of documents that name no known field, both kinds make the same."""
    assert apply_strategic_patch(doc, patch, "Unknown") == apply_merge_patch(doc, patch)
