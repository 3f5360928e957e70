"""The page for keyboards, screen readers and weak eyes: names, order of headings, contrast. axe-core has no finding."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise

import pytest
from tests.report.stored_runs import RUNS

from stepscope.analysis.run import Run
from stepscope.report import html
from stepscope.report.charts.style import DARK, LIGHT

Tags = list[tuple[str, dict[str, str | None]]]
LEAST_TEXT, LEAST_MARK = 4.5, 3.0  # contrast, WCAG 2.2 AA: of text, of parts of a picture


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Tags = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module", params=["with power", "of two ranks", "empty"])
def tags(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tags:
    return _Page(html.render(Run(RUNS[request.param](tmp_path_factory.mktemp("runs"))))).tags


def test_headings_skip_no_level_and_there_is_one_title(tags: Tags) -> None:
    levels = [int(tag[1]) for tag, _ in tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_region_mark_and_field_has_a_name_of_its_own(tags: Tags) -> None:
    for tag, attributes in tags:
        named = {"aria-label", "aria-labelledby", "title"} & attributes.keys()
        if attributes.get("role") in ("region", "img", "graphics-symbol", "graphics-object") or tag in (
            "nav",
            "section",
        ):
            assert named, (tag, attributes)
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = [str(of["aria-label"]) for _, of in tags if of.get("role") == "region"]
    sections = [str(of["id"]) for tag, of in tags if tag == "section"]
    assert len({*labels, *sections}) == len(labels) + len(sections)
    assert ("html", {"lang": "en"}) in tags


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_the_paper(theme: dict[str, str]) -> None:
    for name in ("ink", "muted", "accent", "warn"):
        assert min(_contrast(theme[name], theme[ground]) for ground in ("paper", "panel")) >= LEAST_TEXT, name
    for name in ("forward", "backward", "optimizer", "data", "power", "load"):
        assert _contrast(theme[name], theme["paper"]) >= LEAST_MARK, name
