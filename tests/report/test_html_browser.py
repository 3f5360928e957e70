"""The page in a real browser, where one is installed: it loads in silence, sorts, filters, copies, zooms and prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.fabricate import MODEL, STEP, Op, every_step, fabricate_run
from tests.report.browser import Browser

from stepscope.analysis.run import Run
from stepscope.report import html

HOSTILE = "</script><img src=x onerror=\"document.title='intruded'\">"
DRAWN = "(() => { const c = document.querySelector('canvas'); return new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size; })()"  # noqa: E501 - one expression


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that has names which want out of it."""
    folder = tmp_path_factory.mktemp("pages")
    ops = (*STEP, Op(HOSTILE, HOSTILE, "forward", 900))
    path = fabricate_run(
        folder, steps=10, recorded=every_step, ops=ops, model=(*MODEL, (HOSTILE, HOSTILE, "", 0)), power_w=5.0
    )
    return html.write(Run(path), folder / "page.html")


@pytest.fixture
def opened(chromium: Browser, page: Path) -> Browser:
    chromium.open(page)
    return chromium


def _first(chromium: Browser, table: str) -> str:
    return str(chromium.run(f"document.querySelector('[data-name={table}] tbody td').textContent"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_a_page_loads_in_silence_asks_for_nothing_and_fits_the_screen(
    chromium: Browser, page: Path, width: int, dark: bool
) -> None:
    chromium.open(page, width, 900, dark)
    assert chromium.said == []
    assert chromium.asked == [page.resolve().as_uri()]
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 23, 26)" if dark else "rgb(253, 253, 251)"
    )


def test_names_that_are_markup_stay_text(opened: Browser) -> None:
    assert opened.run("document.images.length") == 0
    assert "intruded" not in opened.run("document.title")
    assert HOSTILE in opened.run("document.querySelector('[data-name=operations]').textContent")
    assert HOSTILE in opened.run("[...document.querySelectorAll('.cell')].map((cell) => cell.ariaLabel).join()")


def test_a_script_that_is_not_ours_does_not_run(chromium: Browser, page: Path, tmp_path: Path) -> None:
    intruder = page.read_text(encoding="utf-8").replace(
        "</body>", "<script>document.title = 'intruded'</script></body>"
    )
    (tmp_path / "page.html").write_text(intruder, encoding="utf-8")
    chromium.open(tmp_path / "page.html")
    assert "intruded" not in chromium.run("document.title")
    assert any("Content Security Policy" in said for said in chromium.said)


def test_a_table_sorts_both_ways_by_mouse_and_by_keyboard(opened: Browser) -> None:
    opened.run("document.querySelector('#operations details').open = true")
    opened.run("document.querySelector('[data-name=operations] th button').click()")
    assert _first(opened, "operations") == "(framework overhead)"
    opened.run("document.querySelector('[data-name=operations] th button').focus()")
    opened.press("Enter")
    assert _first(opened, "operations") == "ReluBackward0"
    assert opened.run("document.querySelector('[data-name=operations] th').getAttribute('aria-sort')") == "descending"


def test_numbers_sort_as_numbers(opened: Browser) -> None:
    opened.run("document.querySelectorAll('[data-name=modules] th button')[2].click()")
    shown = opened.run(
        "[...document.querySelectorAll('[data-name=modules] tbody tr')].map((r) => r.cells[2].textContent)"
    )
    own = [float(text.replace(",", "")) for text in shown if text != "-"]
    assert own == sorted(own, reverse=True)


def test_a_table_filters_and_copies_what_is_left(opened: Browser) -> None:
    opened.run(
        "(() => { const box = document.querySelector('[data-name=operations]'), field = box.querySelector('input');"
        "field.value = 'ADDMM'; field.dispatchEvent(new Event('input'));"
        "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); };"
        "box.querySelector('.tools button').click(); })()"
    )
    lines = str(opened.run("window.copied")).split("\n")
    assert len(lines) == 4  # the heading; aten::addmm, AddmmBackward0 and what evaluates it
    assert lines[0].split("\t")[0] == "Operator"
    assert {re.sub(r".*[: ]", "", line.split("\t")[0]) for line in lines[1:]} == {"addmm", "AddmmBackward0"}


def test_the_icicle_zooms_and_changes_its_quantity(opened: Browser) -> None:
    assert opened.run("document.querySelectorAll('.icicle .cell').length") == 6
    opened.run(
        "[...document.querySelectorAll('.icicle .cell')].find((c) => c.textContent.startsWith('features')).click()"
    )
    labels = "[...document.querySelectorAll('.icicle .cell b')].map((b) => b.textContent).join()"
    assert opened.run(labels) == "features,0,1"
    assert "FLOP" not in opened.run("document.querySelector('.icicle .cell em').textContent")
    opened.run("document.querySelector('.icicle [data-key=flops]').click()")
    assert opened.run("document.querySelector('.icicle .cell em').textContent") == "18 MFLOP"
    opened.run("document.querySelector('.icicle [data-key=backward]').click()")
    assert opened.run("document.querySelector('.icicle .cell em').textContent") == "12 MFLOP"


def test_the_anatomy_is_drawn_and_zooms_by_mouse_and_by_keyboard(opened: Browser) -> None:
    assert opened.run(DRAWN) > 8
    status = "document.querySelector('.anatomy .status').textContent"
    whole = opened.run(status)
    opened.run("document.querySelector('.anatomy canvas').focus()")
    opened.press("+")
    assert re.fullmatch(r"[\d.]+ ms to [\d.]+ ms", opened.run(status))
    opened.press(".")
    assert opened.run(status).startswith("enumerate(DataLoader)")
    opened.press("Escape")
    assert opened.run(status) == whole


def test_pointing_at_an_operation_says_what_it_is(opened: Browser) -> None:
    opened.run("document.querySelector('canvas').scrollIntoView({behavior: 'instant'})")
    box = opened.run("(({x, y, width}) => ({x, y, width}))(document.querySelector('canvas').getBoundingClientRect())")
    for below, begins in ((50, "features.0\n"), (73, "features.0 · aten::")):  # the lane of layers, the first of ops
        opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + box["width"] * 0.2, y=box["y"] + below)
        said = opened.run("document.getElementById('tip').textContent")
        assert said.startswith(begins)
        assert "forward" in said


def test_charts_follow_when_the_reader_changes_the_theme(opened: Browser) -> None:
    pixel = "(() => { const c = document.querySelector('canvas'); return [...c.getContext('2d').getImageData(200, 50, 1, 1).data].join(); })()"  # noqa: E501 - one expression
    light = opened.run(pixel)
    opened.run("document.querySelector('nav button').click()")
    assert opened.run("document.documentElement.dataset.theme") == "dark"
    assert opened.run(pixel) != light


def test_paper_is_light_and_has_more_of_a_table(opened: Browser) -> None:
    opened.run("document.querySelector('nav button').click(); dispatchEvent(new Event('beforeprint'))")
    assert opened.run("document.documentElement.dataset.theme") == "light"
    opened.run("dispatchEvent(new Event('afterprint'))")
    assert opened.run("document.documentElement.dataset.theme") == "dark"
    assert len(opened.call("Page.printToPDF")["data"]) > 10_000


def test_a_run_that_has_nothing_has_a_page_without_an_error(chromium: Browser, tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=0, ops=(), samples=False, model=()))
    chromium.open(html.write(run, tmp_path / "page.html"), 400, 800)
    assert chromium.said == []
    assert chromium.run("document.documentElement.scrollWidth") == 400
