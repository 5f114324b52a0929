"""The API reference and the navigation leave nothing public out."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


FLOORS = ["", "attention", "cache", "checkpoint", "models", "planning", "prefix_cache", "replay", "rules", "testing"]


@pytest.mark.parametrize("floor", FLOORS)
def test_every_public_name_has_a_page(floor):
    module = importlib.import_module(f"numba_ckpt.{floor}".rstrip("."))
    documented = set(re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in DOCS.glob("api/*.md")), re.M))
    homes = {name: getattr(getattr(module, name), "__module__", None) for name in getattr(module, "__all__", [])}
    ours = {name: home for name, home in homes.items() if str(home).startswith("numba_ckpt.")}  # constants have none
    assert not {name: home for name, home in ours.items() if home not in documented}


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/-]+\.md", (DOCS.parent / "mkdocs.yml").read_text()))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
