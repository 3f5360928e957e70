"""Hooks of MkDocs: every page of docs/ is in its part of the site, and its search works from a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
_OUTWARDS = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#]+)\)")
_PAGES = (".md", ".ipynb")
_FIRST = (
    "index.md", "install.md", "devices.md", "guide.md", "reading-a-report.md", "troubleshooting.md", "coming-from.md",
    "glossary.md",
)  # fmt: skip
_NAMELESS = {
    'data-md-component="search" role="dialog"': "Search",
    'id="__search"': "Search",
    'id="__drawer"': "Navigation",
}
# (title of the part, how the names of its pages begin)
_PARTS = (
    ("Case studies", "cases/"),
    ("Guides", "guide-"),
    ("Notebooks", "notebooks/"),
    ("Accuracy", "accuracy|measuring|energy|memory|cost|compatibility"),
    ("Reference", "reference/|json|sensors|boards|workloads|data"),
    ("Develop", ""),
)


def pages() -> list[Any]:
    """The navigation: first pages, then parts; a page belongs to the first part that knows how its name begins."""
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


def on_post_build(config: Any) -> None:
    """Write the index of the search as a script too: a page that is opened from a folder can read no other file."""
    index = Path(config["site_dir"]) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")


def on_post_page(output: str, **_: Any) -> str:
    """Name for screen readers what the theme leaves without a name."""
    for part, name in _NAMELESS.items():
        output = output.replace(part, f'{part} aria-label="{name}"')
    return output


def on_post_template(output_content: str, **_: Any) -> str:
    """Name it on the page for addresses that do not exist too."""
    return on_post_page(output_content)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a file of the repository outside docs/ has no page to lead to: its path is shown instead."""
    folder = (DOCS / page.file.src_uri).parent

    def shown(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        return link[0] if target.is_relative_to(DOCS) else f"{link[1]} (`{target.relative_to(DOCS.parent)}`)"

    return _OUTWARDS.sub(shown, markdown)


def _part_of(name: str) -> str:
    return next(title for title, begins in _PARTS if name.startswith(tuple(begins.split("|"))))
