"""The page is short whatever a run has or lacks: screens, words, bytes; each thing once, and nothing that is empty."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.fabricate import STEP, Op, fabricate_run
from tests.report.browser import Browser
from tests.report.stored_runs import RUNS
from tests.report.test_screen import screen
from tests.test_words import Text, complaints

from stepscope.analysis.run import Run
from stepscope.report import html
from stepscope.report.brief import brief
from stepscope.report.first_screen import advice_sentences
from stepscope.report.sections import overview

SCREEN_PX, WORDS, BYTES = 900, 900, 3_000_000
SCREENS = {"with power": 5, "of a simulated board": 5}  # with sensors; 2 without


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp("runs")) for name, make in RUNS.items()}


@pytest.fixture(scope="module")
def pages(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: html.write(Run(path), folder / f"{name.replace(' ', '-')}.html") for name, path in folders.items()}


@pytest.mark.parametrize("name", RUNS)
def test_a_page_is_a_few_screens_long_and_few_words(chromium: Browser, pages: dict[str, Path], name: str) -> None:
    chromium.open(pages[name], 1400, SCREEN_PX)
    assert chromium.said == []
    assert chromium.run("document.documentElement.scrollHeight") <= SCREENS.get(name, 2) * SCREEN_PX
    assert chromium.run("document.body.innerText.trim().split(/\\s+/).length") <= WORDS
    assert pages[name].stat().st_size <= BYTES
    chromium.open(pages[name], 400, SCREEN_PX)
    assert chromium.run("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("name", RUNS)
def test_every_link_of_the_navigation_leads_to_something(pages: dict[str, Path], name: str) -> None:
    text = pages[name].read_text(encoding="utf-8")
    links = re.findall(r'<a href="#([^"]+)"', text)
    assert links[0] == "overview"
    assert [link for link in links if f'id="{link}"' not in text] == []
    assert ("ranks" in links) == (name == "of two ranks")
    assert ("power" in links) == (name in SCREENS)


@pytest.mark.parametrize("name", RUNS)
def test_the_first_screen_answers_five_questions_or_says_why_it_cannot(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    """What limits it, the most expensive layer, joules a step, does it fit, what to change."""
    chromium.open(pages[name], 1400, SCREEN_PX)
    said = chromium.run("document.querySelector('#overview').innerText")
    assert re.search(r"Bottleneck\s+\S", said)
    assert re.search(r"What to do next\s+1\. \S|What to do next\s+\S", said)
    assert "None" not in said
    if name == "empty":
        return  # its answer is that no step was seen
    assert re.search(r"Energy per step\s+(\d[\d.]* m?J|-\s+(see stepscope doctor|no power in the import))", said)
    sure = "Likely fits" if name == "failed" else "Fits|Does not fit|Too close|Cannot tell, because"
    assert re.search(rf"Does it fit\? ({sure})", said)
    if name not in ("warm-up alone", "without operators", "compiled"):  # what was seen there has no layer
        assert re.search(r"Most expensive layer \S+( \(\w+\))?: [\d.]+ m?s, ", said)
    last = "[...document.querySelectorAll('.answer > *')].at(-1).getBoundingClientRect().bottom"
    assert chromium.run(last) <= SCREEN_PX


@pytest.mark.parametrize("name", RUNS)
def test_no_refused_word_is_read_on_the_page_nor_on_the_screen_nor_in_the_brief(
    chromium: Browser, pages: dict[str, Path], folders: dict[str, Path], name: str
) -> None:
    """What is put together from words and numbers as it is shown, which no search of the source finds."""
    chromium.open(pages[name])
    chromium.run("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    read = [chromium.run("document.body.innerText"), screen(folders[name]), brief(Run(folders[name]))]
    assert complaints(Text(name, 0, line) for text in read for line in text.splitlines()) == []


def test_of_an_accelerator_the_layers_are_listed_by_their_kernels(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["imported from a GPU"])
    buttons = "[...document.querySelectorAll('.layers [aria-label=Quantity] button')].map((b) => b.textContent)"
    assert chromium.run(buttons) == ["Kernels", "CPU time"]
    assert chromium.run("document.querySelector('.layers tbody td.n').textContent") == "2.7 ms"
    said = chromium.run("document.querySelector('#overview').innerText")
    assert "outside operators (Python, or waiting for the accelerator)" in said
    assert "framework" not in said


def test_the_most_expensive_of_many_alike_is_told_with_its_type(tmp_path: Path) -> None:
    run = Run(RUNS["of many layers"](tmp_path))
    few = overview._most_expensive(run)
    assert few.startswith("features.0 (Conv2d): ")
    assert " layers: " not in few
    names = [f"blocks.{number}" for number in range(200)]
    ops = (*STEP[:1], *(Op("aten::addmm", name, "forward", 30) for name in names))
    model = (("", "Net", None, 0), *((name, "Linear", "", 10) for name in names))
    alike = overview._most_expensive(Run(fabricate_run(tmp_path / "alike", steps=20, ops=ops, model=model)))
    assert re.fullmatch(r"blocks\.\d+ \(Linear\): 30 us, 0\.4 % of the step; all 200 Linear layers: \d\d %", alike)


def test_of_several_ranks_throughput_is_of_one_and_the_sum_is_told(
    chromium: Browser, pages: dict[str, Path], folders: dict[str, Path]
) -> None:
    chromium.open(pages["of two ranks"])
    said = chromium.run("document.querySelector('#overview').innerText")
    assert re.search(r"80 samples/s\s+of rank 0; the sum of 2 ranks is 160", said)
    assert "80 samples/s, of rank 0; the sum of 2 ranks is 160" in " ".join(screen(folders["of two ranks"]).split())


def test_of_compiled_layers_none_is_called_the_most_expensive_and_none_has_a_share_of_the_attainable(
    folders: dict[str, Path],
) -> None:
    run = Run(folders["compiled"])
    assert overview._most_expensive(run).startswith("cannot be told: torch.compile ran the layers as one")
    assert run.layers()["attained"].is_null().all()


def test_a_run_without_steps_is_offered_no_tuning(folders: dict[str, Path]) -> None:
    (said,) = advice_sentences(Run(folders["empty"]))
    assert said.startswith("Check that a step is seen")


def test_no_line_breaks_in_an_option_nor_before_a_percent_sign() -> None:
    assert html.backticks_to_code("85 % of it; `x` --record-memory all") == (
        '85\u00a0% of it; <code>x</code> <span class="whole">--record-memory</span> all'
    )


def test_what_is_not_there_is_one_line_at_the_end(pages: dict[str, Path]) -> None:
    text = pages["without sensors"].read_text(encoding="utf-8")
    (line,) = re.findall(r'id="absent">([^<]+)<', text)
    assert "energy (no power was measured; it is unknown, not 0)" in line
    assert text.index('id="absent"') > text.rindex("</section>")


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("name", ["of a simulated board", "of two ranks", "without sensors"])
def test_headline_numbers_are_each_on_one_line_and_begin_level(
    chromium: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    chromium.open(pages[name], width)
    boxes = chromium.run(
        "[...document.querySelectorAll('#overview > .key-figures > div')].map((card) => {"
        " const value = card.querySelector('.value'), box = value.getBoundingClientRect();"
        " return [card.getBoundingClientRect().top, box.top, box.height, value.scrollWidth - value.clientWidth]; })"
    )
    assert boxes
    assert all(height < 40 and excess <= 0 for _, _, height, excess in boxes)
    rows = {round(top): {round(value) for row, value, *_ in boxes if round(row) == round(top)} for top, *_ in boxes}
    assert all(len(values) == 1 for values in rows.values())


def test_short_layers_have_microseconds_and_lists_without_source_no_empty_column(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["of a simulated board"])
    shown = chromium.run("[...document.querySelectorAll('.layers td.n')].map((cell) => cell.textContent)")
    assert {value.split()[1] for value in shown} == {"ms", "us"}
    assert all(1 <= float(value.split()[0]) < 1000 for value in shown)
    beside = "document.querySelector('.layers table').getBoundingClientRect().right"
    assert chromium.run(f"{beside} - document.querySelector('.layers td.n').getBoundingClientRect().right") < 10


def test_a_simulated_run_is_framed_and_named_so_everywhere(chromium: Browser, pages: dict[str, Path]) -> None:
    page = pages["of a simulated board"]
    text = page.read_text(encoding="utf-8")
    assert "SIMULATED sensors: jetson-tx2" in text[text.index("<title>") : text.index("</title>")]
    chromium.open(page)
    assert "quill" not in chromium.run("document.querySelector('header').innerText")
    assert chromium.run("getComputedStyle(document.body, '::before').backgroundImage").startswith("repeating-linear")
    labels = chromium.run("[...document.querySelectorAll('#overview > .key-figures dt')].map((d) => d.textContent)")
    assert {label for label in labels if "nergy" in label or "ower" in label or "zone" in label} == {
        "simulated Energy per step", "simulated Power", "simulated Hottest zone",
    }  # fmt: skip
    assert 'class="simulated"' not in pages["without sensors"].read_text(encoding="utf-8")


def test_the_list_of_layers_switches_its_quantity_groups_and_finds(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["of many layers"])
    names = "[...document.querySelectorAll('.layers tbody tr')].map((row) => row.cells[0].firstChild.textContent)"
    assert chromium.run(names)[0] == "features.0"
    chromium.run("document.querySelector('.layers [data-key=Type]').click()")
    assert "NonDynamicallyQuantizableLinear" in chromium.run(names)
    chromium.run("document.querySelector('.layers [data-key=Layer]').click()")
    chromium.run("document.querySelector('.layers [data-key=\"FLOP/s\"]').click()")
    assert chromium.run("document.querySelector('.layers td.n').textContent").endswith("GFLOP/s")
    chromium.run(
        "(() => { const f = document.querySelector('.layers input'); f.value = 'layers.7.';"
        "f.dispatchEvent(new Event('input')); })()"
    )
    assert chromium.run(names) == ["encoder.layers.7.attention.projection"]
    chromium.run("document.querySelector('.views > .choice button:nth-child(3)').click()")
    assert chromium.run("document.querySelector('[data-view=Bars]').hidden")
    assert not chromium.run("document.querySelector('[data-view=Table]').hidden")


def test_a_group_of_layers_that_is_chosen_is_marked_and_its_rate_is_the_highest_of_them(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["of many layers"])
    chromium.run("document.querySelector('.layers [data-key=Type]').click()")
    chosen = "[...document.querySelectorAll('.layers tbody tr')].find((row) => row.textContent.includes('\u00d7'))"
    chromium.run(f"{chosen}.click()")
    assert chromium.run(f"{chosen}.className") == "marked"
    assert chromium.run("document.querySelectorAll('.layers tr.marked').length") == 1
    chromium.run("document.querySelector('.layers [data-key=\"FLOP/s\"]').click()")
    assert chromium.run(f"{chosen}.querySelector('.n').textContent").startswith("up to ")
    chromium.run("document.querySelector('.layers [data-key=Layer]').click()")
    assert "up to" not in chromium.run("document.querySelector('.layers tbody').textContent")


def test_a_layer_that_is_chosen_in_the_list_is_marked_in_the_timeline_and_the_reverse(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["without sensors"])
    marked = "[...document.querySelectorAll('.layers tr.marked')].map((row) => row.cells[0].firstChild.textContent)"
    picture = "document.querySelector('.anatomy canvas').toDataURL()"
    before = chromium.run(picture)
    chromium.run("document.querySelector('.layers tbody tr').focus()")
    chromium.press("Enter")
    assert chromium.run(marked) == ["features.0"]
    assert chromium.run(picture) != before
    assert chromium.run("document.activeElement.cells[0].firstChild.textContent") == "features.0"
    chromium.run("document.dispatchEvent(new CustomEvent('layers', {detail: {names: ['fc'], inView: true}}))")
    assert chromium.run(marked) == ["fc"]
    chromium.run("document.querySelector('.anatomy canvas').focus()")
    chromium.press("Escape")
    chromium.run("document.querySelector('.anatomy .choice button:last-child').click()")
    assert chromium.run(picture) == before


def test_a_phase_has_one_colour_and_no_rail_or_core_has_it() -> None:
    from stepscope.report.charts.style import DARK, LIGHT

    phases = ("forward", "backward", "optimizer", "data", "communication", "other")
    others = ("power", "load", "estimated", "share", *(f"rail-{number}" for number in range(1, 7)))
    for theme in (LIGHT, DARK):
        assert not {theme[name] for name in phases} & {theme[name] for name in others}
