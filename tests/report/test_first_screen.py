"""The first screen looks as it did: a coarse picture of two runs, and what such a picture must notice."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("PIL")
from PIL import Image
from tests.report.browser import Browser
from tests.report.first_screen import ACROSS, DOWN, LIMIT, RUNS, STORED, drawn, worst_tile

CHANGES = {
    "a number is missing": "document.querySelector('.key-figures > div:nth-child(2)').style.visibility = 'hidden'",
    "all numbers are missing": "document.querySelector('.key-figures').remove()",
    "the answer is missing": "document.querySelector('.answer').remove()",
    "the bar of phases is missing": "document.querySelector('.bar-of').style.visibility = 'hidden'",
    "the bars of steps are missing": "document.querySelector('#overview .chart').style.visibility = 'hidden'",
    "a block lies 20 px lower": "document.querySelector('.key-figures').style.marginTop = '20px'",
    "a block lies 60 px to the right": "document.querySelector('.answer').style.marginLeft = '60px'",
    "it is dark": "document.documentElement.dataset.theme = 'dark'",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("first")


def stored(name: str) -> Image.Image:
    with Image.open(STORED / f"{name}.png") as picture:
        grey: Image.Image = picture.convert("L")
    return grey


@pytest.mark.parametrize("name", RUNS)
def test_the_first_screen_looks_as_it_did(chromium: Browser, folder: Path, name: str) -> None:
    found = drawn(chromium, folder, name)
    said = "python -m tests.report.first_screen draws it anew where the change is meant"
    assert worst_tile(found, stored(name)) <= LIMIT, said


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", RUNS)
def test_a_block_that_is_missing_or_moved_is_noticed(chromium: Browser, folder: Path, name: str, change: str) -> None:
    found = drawn(chromium, folder, name, CHANGES[change])
    assert worst_tile(found, stored(name)) > LIMIT


@pytest.mark.parametrize("name", RUNS)
def test_how_letters_are_smoothed_makes_no_difference(chromium: Browser, folder: Path, name: str) -> None:
    blurred = "document.body.style.filter = 'blur(0.6px)'; document.body.style.transform = 'translate(0.5px, 0.5px)'"
    found = drawn(chromium, folder, name, blurred)
    assert worst_tile(found, drawn(chromium, folder, name)) <= LIMIT


def test_the_stored_pictures_are_small() -> None:
    for path in STORED.glob("*.png"):
        assert path.stem in RUNS
        assert path.stat().st_size < 150_000
        with Image.open(path) as picture:
            assert picture.size == (ACROSS, DOWN)
