"""The first screen of a page as a small picture in grey: where its blocks lie, not how its letters are drawn.

python -m tests.report.first_screen draws the pictures of tests/report/first_screens anew: look at the page before you
commit them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from tests.fabricate import fabricate_run
from tests.report.browser import Browser
from tests.report.stored_runs import simulated_board

from stepscope.analysis.run import Run
from stepscope.arrays import Floats
from stepscope.report import html

STORED = Path(__file__).parent / "first_screens"
RUNS: dict[str, Callable[[Path], Path]] = {
    "without-sensors": lambda out: fabricate_run(out, steps=60, noise=0.02, overhead=0.05),
    "simulated-board": simulated_board,
}
WIDTH, HEIGHT = 1400, 900  # px of the window
ACROSS, DOWN = 140, 90  # cells of the picture, of ten px by ten
_FONT = "document.body.style.fontFamily = 'DejaVu Sans'; "  # fontconfig of Debian brings it wherever Chromium is
_TILE_DOWN, _TILE_ACROSS = 4, 9  # cells: a number with its name
_FAINT = 3.0  # of 255, mean of a tile: what lies there besides letters counts little
_ANOTHER_PAPER = 20  # of 255
LIMIT = 0.6  # of the ink of a tile: letters drawn or spaced otherwise move up to 0.44, the least block that goes 0.88


def drawn(opened: Browser, folder: Path, name: str, script: str = "0") -> Image.Image:
    """Return the first screen of a run's page in light colours; a script may change the page before."""
    page = folder / f"{name}.html"
    if not page.exists():
        html.write(Run(RUNS[name](folder / name)), page)
    opened.open(page, WIDTH, HEIGHT)
    opened.run(_FONT + script)
    opened.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
    opened.picture(folder / "screen.png", 0, HEIGHT)
    return Image.open(folder / "screen.png").convert("L").resize((ACROSS, DOWN), Image.Resampling.BOX)


def worst_tile(one: Image.Image, other: Image.Image) -> float:
    """Return by how much two pictures differ in the tile of 90 by 40 px that differs most, 0 to 1, as share of its ink.

    Ink is how far a cell is from the paper, whose grey is the most frequent one.
    """
    if abs(_paper(one) - _paper(other)) > _ANOTHER_PAPER:
        return 1.0
    first, second = _ink(one), _ink(other)
    return float((np.abs(first - second) / (np.maximum(first, second) + _FAINT)).max())


def _paper(picture: Image.Image) -> int:
    return int(np.bincount(np.asarray(picture).ravel()).argmax())


def _ink(picture: Image.Image) -> Floats:
    """Mean ink of the tile around each cell (rows, columns), 0 to 255."""
    ink = np.abs(np.asarray(picture, dtype=np.float64) - _paper(picture))
    tiles = np.lib.stride_tricks.sliding_window_view(ink, (_TILE_DOWN, _TILE_ACROSS))
    mean: Floats = tiles.mean(axis=(2, 3))
    return mean


def renew() -> None:
    """Draw the stored pictures anew."""
    folder = Path(tempfile.mkdtemp())
    STORED.mkdir(exist_ok=True)
    with Browser(folder / "profile") as opened:
        for name in RUNS:
            drawn(opened, folder, name).save(STORED / f"{name}.png", optimize=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    renew()
