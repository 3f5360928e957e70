"""The page of a run: whole, self-contained, escaped, and bearable whatever the run lacks."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.fabricate import MODEL, STEP, Core, Op, every_step, fabricate_run

from stepscope.analysis.run import Run
from stepscope.errors import MissingDependency, OutputNotWritable
from stepscope.report import html, sections
from stepscope.report.page.parts import Section, TabbedViews
from stepscope.report.sections import modules
from stepscope.runfolder import RunWriter
from stepscope.units import milliseconds, row_label

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class _Page(HTMLParser):
    """Tags with their attributes, the text of data scripts, and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[Any] = []
        self.text: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        is_data = tag == "script" and dict(attributes).get("type") == "application/json"
        self._inside = "data" if is_data else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data.append(json.loads(data))
        elif self._inside not in ("script", "style"):
            self.text.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    """A run that has everything, with a gap in its samples, and its page."""
    folder = tmp_path_factory.mktemp("runs")
    run = Run(fabricate_run(folder, steps=40, noise=0.03, gap=(0.45, 0.5), cores=(Core(0.75), Core(0.25))))
    return run, html.render(run)


def test_a_page_has_the_sections_that_have_something_the_closed_ones_last_and_links_to_the_open(
    whole: tuple[Run, str],
) -> None:
    page = _Page(whole[1])
    ids = [attributes["id"] for attributes in page.of("section")]
    modules = sorted(sections.discover_sections().modules, key=lambda module: module.ORDER)
    built = [(module.__name__.rpartition(".")[2].replace("_", "-"), module.build(whole[0])) for module in modules]
    kept = [(name, section.closed) for name, section in built if section.parts]
    opened, closed = ([name for name, is_closed in kept if is_closed == group] for group in (False, True))
    assert ids == [*opened, *closed]
    assert opened[0] == "overview"
    assert [link["href"] for link in page.of("a")] == [*(f"#{name}" for name in opened), "#details"]
    assert {"ranks", "power"} <= {name for name, section in built if not section.parts}


def test_a_page_asks_no_network_for_anything(whole: tuple[Run, str]) -> None:
    page = _Page(whole[1])
    assert not page.of("link")
    assert not page.of("iframe")
    assert all("src" not in attributes for _, attributes in page.tags)
    assert "@import" not in whole[1]
    assert not re.search(r"url\((?!#)", whole[1])
    (policy,) = [meta["content"] for meta in page.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_the_numbers_of_the_page_are_those_of_the_run(whole: tuple[Run, str]) -> None:
    run, text = whole
    said = " ".join(_Page(text).text).replace("\u00a0", " ")
    verdict = run.verdict()
    assert verdict.sentence in said
    for evidence in verdict.causes[0].evidence[:2]:
        assert evidence.text[1:] in said
    for row in run.phases().iter_rows(named=True):
        assert milliseconds(row["ns"]) in said
    for row in run.operators().iter_rows(named=True):
        assert row_label(row["name"]) in said
        assert f"[{milliseconds(row['low_ns'])}, {milliseconds(row['high_ns'])}]" in said


def test_the_icicle_holds_every_module_below_its_parent(whole: tuple[Run, str]) -> None:
    (tree,) = [data for data in _Page(whole[1]).data if "columns" in data]
    rows = [dict(zip(tree["columns"], row, strict=True)) for row in tree["rows"]]
    assert [row["name"] for row in rows] == [name for name, *_ in MODEL]
    parents = [None if row["parent"] is None else rows[row["parent"]]["name"] for row in rows]
    assert parents == [parent for _, _, parent, _ in MODEL]
    total = [values[0] for values in tree["layers"][0]["rows"]]
    inside = sum(whole for row, whole in zip(rows, total, strict=True) if row["parent"] == 0)
    assert 0 < inside <= total[0]


def test_what_was_not_read_is_tinted_and_never_a_bar_of_zero(whole: tuple[Run, str]) -> None:
    text = whole[1]
    assert "not measured" in text
    assert 'fill="var(--gap)"' in text
    assert ": 0 % busy" not in text


def test_charts_follow_the_theme_and_keep_no_colour_of_their_own(whole: tuple[Run, str]) -> None:
    drawn = re.findall(r"<svg.*?</svg>", whole[1], flags=re.DOTALL)
    assert len(drawn) >= 5
    for svg in drawn:
        assert "var(--" in svg
        assert not re.search(r'(fill|stroke)="#[0-9a-f]{6}"', svg)


@pytest.mark.parametrize("where", ["module", "op", "workload", "argv"])
def test_names_of_users_stay_text(tmp_path: Path, where: str) -> None:
    name = {key: HOSTILE if key == where else "plain" for key in ("module", "op", "workload", "argv")}
    path = fabricate_run(
        tmp_path,
        steps=8,
        recorded=every_step,
        ops=(*STEP, Op(name["op"], name["module"], "forward", 500)),
        model=(*MODEL, (name["module"], HOSTILE if where == "module" else "T", "", 0)),
        header={"workload": {"name": name["workload"]}, "argv": ["train.py", name["argv"]]},
    )
    page = _Page(html.render(Run(path)))
    scripts = page.of("script")
    assert not page.of("img")
    assert [script.get("type") for script in scripts].count(None) == 1  # ours
    shown = " ".join(page.text)
    assert HOSTILE in shown


def test_characters_that_steer_are_spelt_out_and_not_obeyed(tmp_path: Path) -> None:
    name = "a\u202eb\x1b[31mc"
    model = (*MODEL, (name, "T", "", 0))
    ops = (*STEP, Op("aten::x\u2066y", name, "forward", 500))
    text = html.render(Run(fabricate_run(tmp_path, steps=8, recorded=every_step, ops=ops, model=model)))
    assert not re.search("[\u202e\x1b\u2066]", text)
    page = _Page(text)
    assert "a\\u202eb\\u001b[31mc" in " ".join(page.text)
    (tree,) = [data for data in page.data if "columns" in data]
    assert "a\\u202eb\\u001b[31mc" in [row[0] for row in tree["rows"]]


def test_a_very_long_name_keeps_its_ends(tmp_path: Path) -> None:
    name = f"begin{'x' * 500}end"
    text = html.render(Run(fabricate_run(tmp_path, steps=8, ops=(*STEP, Op(name, "fc", "forward", 500)))))
    assert name not in text
    assert re.search(r"beginx+…x+end", text)


RUNS: dict[str, dict[str, Any]] = {
    "no steps": {"steps": 0, "ops": (), "samples": False},
    "one step": {"steps": 1},
    "warm-up only": {"steps": 3},
    "no ops": {"steps": 12, "ops": ()},
    "no samples": {"steps": 12, "samples": False},
    "nothing read": {"steps": 12, "gap": (-1.0, 2.0)},
    "steps without recorded ones": {"steps": 12, "recorded": lambda step: False},
    "killed": {"steps": 12, "status": None},
    "with power": {"steps": 12, "power_w": 7.5},
    "no model": {"steps": 12, "model": ()},
}


@pytest.mark.parametrize("lacking", RUNS.values(), ids=RUNS)
def test_a_run_that_lacks_something_still_has_a_page_that_says_so(tmp_path: Path, lacking: dict[str, Any]) -> None:
    run = Run(fabricate_run(tmp_path, **lacking))
    shown = " ".join(_Page(html.render(run)).text)
    for entry in run.not_measured():
        assert entry.what[1:].replace("_", " ") in shown
    assert "None" not in shown
    assert "nan" not in shown.lower().split()


def test_a_run_folder_with_nothing_but_its_header_has_a_page(writer: RunWriter) -> None:
    assert "No training step was recorded" in html.render(Run(writer.path))


@pytest.mark.parametrize(("status", "said"), [("failed", "ended with an error"), ("oom", "ran out of memory")])
def test_a_page_says_above_all_numbers_how_a_run_went_wrong(tmp_path: Path, status: str, said: str) -> None:
    text = html.render(Run(fabricate_run(tmp_path, steps=5, status=status)))
    assert said in text[: text.index("<nav")]


def test_a_page_of_many_modules_and_steps_stays_small(tmp_path: Path) -> None:
    names = [f"blocks.{number}" for number in range(2_500)]
    ops = tuple(Op(f"aten::op{index % 50}", name, "forward", 20) for index, name in enumerate(names))
    model = (MODEL[0], *((name, "Linear", "", 10) for name in names))
    run = Run(fabricate_run(tmp_path, steps=1_600, recorded=lambda step: step % 200 == 5, ops=ops, model=model))
    text = html.render(run)
    assert len(text.encode()) < 2_000_000
    assert "smaller modules" in text
    assert "The 1,301 with the least time are not listed." in text  # the model itself is a layer


def test_a_page_says_what_its_times_are_only_where_they_are_so(tmp_path: Path) -> None:
    said = "The step time is a median; its parts are means. Brackets hold"
    assert said in html.render(Run(fabricate_run(tmp_path, steps=8)))
    other = html.render_page("A sweep", [], None, [])
    assert "<p>Written by Stepscope" in other
    assert "median" not in other[other.index("<footer>") : other.index("</footer>")]


def test_layers_without_a_quantity_have_neither_bars_nor_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(fabricate_run(tmp_path, steps=8))
    monkeypatch.setattr(modules, "_metrics", lambda run, layers: iter(()))
    monkeypatch.setattr(modules, "_layers", lambda run, place: iter(()))
    (views,) = modules.build(run).parts
    assert isinstance(views, TabbedViews)
    assert [title for title, _ in views.parts] == ["Table"]


def test_write_returns_the_file_it_wrote(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=0, ops=(), samples=False))
    path = html.write(run, tmp_path / "page.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=0, ops=(), samples=False))
    with pytest.raises(OutputNotWritable) as caught:
        html.write(run, tmp_path / "missing" / "page.html")
    assert caught.value.hint


def test_without_the_drawing_libraries_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def absent(name: str, package: str | None = None) -> object:
        return None if name == "vl_convert" else found(name, package)

    run = Run(fabricate_run(tmp_path, steps=0, ops=(), samples=False))
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    with pytest.raises(MissingDependency) as caught:
        html.render(run)
    assert "vl-convert-python" in str(caught.value)
    assert caught.value.hint == "pip install 'stepscope[report]'"


@pytest.mark.parametrize("module", sections.discover_sections().modules, ids=lambda module: module.__name__)
def test_every_section_keeps_the_contract(module: Any, tmp_path: Path) -> None:
    assert isinstance(module.TITLE, str)
    assert isinstance(module.ORDER, int)
    build: Callable[[Run], Section] = module.build
    assert isinstance(build(Run(fabricate_run(tmp_path, steps=0, ops=(), samples=False))), Section)


def test_sections_have_places_of_their_own() -> None:
    found = sections.discover_sections()
    assert not found.warnings
    assert len({module.ORDER for module in found.modules}) == len(found.modules)


def test_a_page_for_a_folder_that_is_not_there_is_refused_before_it_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "render", lambda run: pytest.fail("this takes seconds"))
    with pytest.raises(OutputNotWritable, match="no such folder"):
        html.write(Run(fabricate_run(tmp_path, steps=4)), tmp_path / "nowhere" / "page.html")
