"""Draws the picture of README and docs, and the screen and numbers of their front pages: `python docs/images/make.py`.

On a machine that does nothing else: LeNet is trained for 600 steps, a minute of `stepscope tune` measures what to
change, and the page of that run is pictured by the system's Chromium. Two minutes in all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import stepscope
from stepscope.analysis.first_screen import headline, machine_name
from stepscope.analysis.suggested_changes import what_to_change
from stepscope.report.first_screen import figure_text
from stepscope.report.terminal_tables import short_source
from stepscope.units import percent

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT = 1400, 1640  # px
_COLOURS = 256
_LINE = 120  # characters of a line of Markdown
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main(folder: Path, out: Path, steps: str = "600", minutes: str = "1") -> None:
    """Measure in a folder; write report.png, index.md and README.md into `out`, or where they belong."""
    _stepscope(folder, "run", "lenet", "--steps", steps, "--out", "runs")
    _stepscope(folder, "tune", "lenet", "--minutes", minutes)
    (path,) = (folder / "runs").iterdir()
    _stepscope(folder, "report", str(path), "--html")
    _picture(path / "report.html", out / "report.png")
    screen = _stepscope(folder, "report", str(path))
    lines = [line.rstrip() for line in screen.splitlines() if not line.startswith("MORE")]
    shown, summary = "\n".join(["```text", *lines, "```"]), f"{_summary(path)}\n\n"
    for page in (HERE.parent / "index.md", HERE.parents[1] / "README.md"):
        text = re.sub(r"```text\n.*?```", lambda _: shown, page.read_text(encoding="utf-8"), count=1, flags=re.DOTALL)
        text = re.sub(_SUMMARY, lambda _: summary, text, count=1, flags=re.DOTALL)
        (page if out == HERE else out / page.name).write_text(text, encoding="utf-8")


def _stepscope(folder: Path, *words: str) -> str:
    line = [sys.executable, "-m", "stepscope", *words]
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(line, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def _picture(page: Path, png: Path) -> None:
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=browser)
        view = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        view.goto(page.as_uri())
        view.screenshot(path=png)
        opened.close()
    Image.open(png).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(png, optimize=True)


_SUMMARY = r"One training step of LeNet takes \*\*.*?\n\n"


def _summary(path: Path) -> str:
    """The first paragraph of the docs: the step, where it goes, and what there is to gain."""
    run = stepscope.Run(path)
    (step,) = (row for row in headline(run) if row.metric == "step_time")
    shares = {row["phase"]: percent(row["share"], 0) for row in run.phases().iter_rows(named=True)}
    layer = run.layers().row(0, named=True)
    gain = re.search(r"(\w+): .*?, ([\d.]+) % \[", what_to_change(run).sentence)
    machine = f"{machine_name(run)} {'virtual machine' if run.device.get('virtual_machine') else 'machine'}"
    text = (
        f"One training step of LeNet takes **{figure_text(step).replace('/step', '')}** on {os.cpu_count()} cores "
        f"of an {machine}: "
        f"{shares['forward']} of it forward, {shares['backward']} backward, {percent(layer['share'], 0)} in one layer "
        f"(`{layer['layer']}`, `{short_source(layer['source'])}`). "
        + (f"`{gain[1]}` would save {float(gain[2]):.0f} %, measured. " if gain else "")
        + "Stepscope says the same of your training on your device, and joules where there is a power sensor."
    )
    return textwrap.fill(text, _LINE, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made), HERE)
