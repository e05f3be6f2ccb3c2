"""The pages tell the truth where it can be looked up: tables are fresh, named tests and links exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_the_table_of_fields_is_fresh() -> None:
    command = [sys.executable, str(ROOT / "hack" / "compatibility"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def named_tests() -> list[tuple[str, str, str]]:
    """(page, file, test) of everything that is written as `tests/...py::name`."""
    return [
        (page.name, file, name)
        for page in PAGES
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    ]


def test_the_security_page_names_its_tests() -> None:
    assert len([page for page, _, _ in named_tests() if page == "security.md"]) > 10


@pytest.mark.parametrize(("page", "file", "name"), named_tests())
def test_every_named_test_exists(page: str, file: str, name: str) -> None:
    path = ROOT / file
    assert path.exists(), f"docs/{page} names {file}, which is not in the tree"
    assert re.search(rf"def {name}\(|class {name}\b", path.read_text()), f"docs/{page}: {file} has no {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+?)(?:#[\w-]+)?\)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}, which is not in the tree"
