"""The simple JSONPaths of printer columns and of scale: fields, indexes, `*`, and `[?(@.type=="Ready")]`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

Step = Callable[[Any], list[Any]]
_FIELD: Final = re.compile(r"\.?((?:[^.\[\]\\]|\\.)+)")
_QUOTED: Final = re.compile(r"\[\s*(['\"])(.*?)\1\s*\]")
_INDEX: Final = re.compile(r"\[(-?\d+)\]")
_FILTER: Final = re.compile(
    r"\[\?\(\s*@((?:\.[^=!<>\s]+)+)\s*(==|!=)\s*(?:'([^']*)'|\"([^\"]*)\"|([^'\")\s]+))\s*\)\]"
)


class BadPath(ValueError):
    """The path is not one of those that are understood."""


class JsonPath:
    def __init__(self, text: str) -> None:
        self.text = text
        self._steps = _parse(text.strip().removeprefix("{").removesuffix("}").removeprefix("$"))

    def find(self, obj: Any) -> list[Any]:
        found = [obj]
        for step in self._steps:
            found = [inner for one in found for inner in step(one)]
        return found


def _parse(text: str) -> list[Step]:
    steps: list[Step] = []
    at = 0
    while at < len(text):
        if text.startswith("[*]", at) or text.startswith(".*", at):
            steps.append(_every)
            at += 3 if text[at] == "[" else 2
        elif match := _FILTER.match(text, at):
            steps.append(_filter(match))
            at = match.end()
        elif match := _INDEX.match(text, at):
            steps.append(_index(int(match[1])))
            at = match.end()
        elif match := _QUOTED.match(text, at):
            steps.append(_field(match[2]))
            at = match.end()
        elif text[at] != "[" and (match := _FIELD.match(text, at)):
            steps.append(_field(re.sub(r"\\(.)", r"\1", match[1])))
            at = match.end()
        else:
            raise BadPath(f"the JSONPath {text!r} cannot be read at {text[at:]!r}")
    return steps


def _every(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _field(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _index(index: int) -> Step:
    return lambda value: (
        [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []
    )


def _filter(match: re.Match[str]) -> Step:
    inner = JsonPath(match[1])
    wanted = next((group for group in match.group(3, 4, 5) if group is not None), "")
    equal = match[2] == "=="

    def step(value: Any) -> list[Any]:
        if not isinstance(value, list):
            return []
        return [one for one in value if any((shown(got) == wanted) == equal for got in inner.find(one))]

    return step


def shown(value: Any) -> str:
    """A value as a cell shows it."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
