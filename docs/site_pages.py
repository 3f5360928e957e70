"""The order of the documentation site: a hook of MkDocs that puts every page of docs/ in its part."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
_OUTWARDS = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#]+)\)")
_PAGES = (".md", ".ipynb")
_FIRST = ("index.md", "install.md", "guide.md")
# (title of the part, which pages belong to it)
_PARTS = (
    ("Guides", "guide-"),
    ("Studies", "guide-stud"),
    ("Notebooks", "notebooks/"),
    ("Reference", "reference/"),
    ("Extend it", "add-a-"),
    ("How it works", ""),
)


def pages() -> list[Any]:
    """The navigation: first pages, then parts; a page belongs to the part with the longest beginning of its name."""
    names = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.suffix in _PAGES)
    parts: dict[str, list[str]] = {title: [] for title, _ in _PARTS}
    for name in names:
        if name not in _FIRST:
            parts[_part_of(name)].append(name)
    return [*(name for name in _FIRST if name in names), *({title: found} for title, found in parts.items() if found)]


def on_config(config: Any) -> Any:
    """MkDocs calls this before it reads the pages."""
    config["nav"] = pages()
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a file of the repository outside docs/ has no page to lead to: its path is shown instead."""
    folder = (DOCS / page.file.src_uri).parent

    def shown(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        return link[0] if target.is_relative_to(DOCS) else f"{link[1]} (`{target.relative_to(DOCS.parent)}`)"

    return _OUTWARDS.sub(shown, markdown)


def _part_of(name: str) -> str:
    return max((part for part in _PARTS if name.startswith(part[1])), key=lambda part: len(part[1]))[0]
