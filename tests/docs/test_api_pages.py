"""The API reference and the navigation leave nothing public out."""

import re
from pathlib import Path

import numba_ckpt

DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_has_a_page():
    documented = set(re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in DOCS.glob("api/*.md")), re.M))
    homes = {name: getattr(getattr(numba_ckpt, name), "__module__", None) for name in numba_ckpt.__all__}
    assert not {name: home for name, home in homes.items() if home is not None and home not in documented}


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/-]+\.md", (DOCS.parent / "mkdocs.yml").read_text()))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
