"""The architecture page tells the truth about the tree, and files stay small enough for a head."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCES = sorted((ROOT / "src" / "hotvirt").rglob("*.py"))
LONGEST = 520


def packages() -> list[str]:
    return sorted(
        f"src/{p.parent.relative_to(ROOT / 'src')}/"
        for p in (ROOT / "src" / "hotvirt").rglob("__init__.py")
        if p.parent.name != "hotvirt"
    )


@pytest.mark.parametrize("package", packages())
def test_every_package_is_on_the_page(package: str) -> None:
    assert f"`{package}`" in PAGE, f"docs/architecture.md does not name {package}: add a row to its map"


def named_paths() -> list[str]:
    """Everything in backticks that is a path of this repository."""
    tops = "src|docs|deploy|tests|examples|bench|demo|hack"
    return sorted(set(re.findall(rf"`((?:{tops})/[A-Za-z0-9_./-]*)`", PAGE)))


def test_the_page_names_paths() -> None:
    assert len(named_paths()) > 10


@pytest.mark.parametrize("path", named_paths())
def test_every_named_path_exists(path: str) -> None:
    assert (ROOT / path).exists(), f"docs/architecture.md names {path}, which is not in the tree"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_too_long_for_a_head(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= LONGEST, f"{path.relative_to(ROOT)} has {lines} lines: split it by concept"
