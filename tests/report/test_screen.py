"""The answer on one screen: 24 lines whatever a run has or lacks, and every line says what it stands for."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from rich.text import Text
from tests.fabricate import Op, fabricate_run
from tests.report.stored_runs import RUNS

from stepscope.analysis.run import Run
from stepscope.report.first_screen import LINES, _labelled, advice_sentences, render


def screen(path: Path, width: int = 100, colour: bool = False) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False, force_terminal=colour)
    with console.capture() as captured:
        console.print(render(Run(path)))
    return captured.get()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp("runs")) for name, make in RUNS.items()}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", RUNS)
def test_any_run_is_answered_on_one_screen(runs: dict[str, Path], name: str, width: int) -> None:
    lines = screen(runs[name], width).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= min(width, 100)
    assert any(line.startswith("BOTTLENECK") for line in lines)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("without sensors", ("/step [", "samples/s [", "peak 510 MB of 8 GB", "NOT MEASURED", "energy")),
        ("without sensors", ("Compute bound: arithmetic (high confidence", "of the profiled steps", "backward")),
        ("with power", ("80 mJ/step", "5 W", "features.0")),
        ("of a simulated board", ("SIMULATED sensors: jetson-tx2", "AMD EPYC", "SIMULATED 60.9", "°C")),
        ("imported from a GPU", ("10 ms/step", "Conv2d_0", "kernels", "2.7 ms")),
        (
            "compiled",
            ("whose FLOPs and bytes are not known take", "forward and backward of 4 modules"),
        ),
        ("failed", ("failed", "ValueError: boom")),
        ("empty", ("No training step was recorded", "optimizer.step()")),
        ("warm-up alone", ("3 steps, all of them warm-up",)),
        ("without operators", ("no operator was recorded",)),
        ("of two ranks", ("2 ranks",)),
        ("of many layers", ("layers (45)",)),
    ],
)
def test_the_screen_says_what_the_run_has(runs: dict[str, Path], name: str, said: tuple[str, ...]) -> None:
    text = " ".join(screen(runs[name]).split())
    assert [each for each in said if each not in text] == []


def test_a_simulated_board_is_no_name_of_the_machine(runs: dict[str, Path]) -> None:
    assert "quill" not in screen(runs["of a simulated board"])


def test_a_number_that_was_simulated_is_marked_on_the_screen_itself(runs: dict[str, Path]) -> None:
    first = " ".join(screen(runs["of a simulated board"]).split("BOTTLENECK")[0].split())
    joules = first.split(" mJ/step")[0].rsplit("SIMULATED", 1)
    assert len(joules) == 2
    assert len(joules[1].split()) == 1  # the number alone lies between the mark and its unit


@pytest.mark.parametrize("width", range(60, 101))
def test_no_line_breaks_within_an_interval_or_before_a_percent_sign(width: int) -> None:
    sentence = "the thread was waiting for a core 78 % [72 %, 84 %] of the time; 50 ms [50, 1,234] after the first, 9 %"
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(_labelled("BOTTLENECK", Text(sentence)))
    lines = [line[14:].strip() for line in captured.get().splitlines()]
    assert " ".join(lines) == sentence
    assert [line for line in lines if line.count("[") != line.count("]") or line.startswith("%")] == []


def test_where_the_rest_is_takes_the_name_of_the_run_once(runs: dict[str, Path]) -> None:
    said = screen(runs["of two ranks"]).replace("\n", "")
    assert said.count(runs["of two ranks"].name) == 1
    assert "or --html for the page" in said


def test_the_command_for_the_rest_is_whole_where_the_path_is_wider_than_the_terminal(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path / "a folder with a name that is long enough" / "below" / ("x" * 60))
    said = "".join(line.strip() for line in screen(path, 60).partition("MORE")[2].splitlines())
    assert str(path).replace(" ", "") in said.replace(" ", "")
    assert "…" not in said


def test_what_is_to_be_done_first_stands_first(tmp_path: Path) -> None:
    following = advice_sentences(Run(fabricate_run(tmp_path, steps=8)))
    assert following[0].startswith("First run longer")
    assert any(sentence.startswith("stepscope tune") for sentence in following[1:])


def test_the_phases_add_up_to_the_step(runs: dict[str, Path]) -> None:
    phases = screen(runs["without sensors"]).partition("OF THE STEP")[2].partition("layers (")[0]
    shares = [float(part.split()[-1]) for part in phases.split("%")[:-1]]
    assert abs(sum(shares) - 100) <= 2


def test_without_colour_there_is_no_escape_and_with_it_the_same_words(runs: dict[str, Path]) -> None:
    plain, coloured = (screen(runs["without sensors"], colour=colour) for colour in (False, True))
    assert "\x1b" not in plain
    assert Console(file=io.StringIO()).render_str(plain).plain == plain
    from rich.text import Text

    assert Text.from_ansi(coloured).plain.split() == plain.split()


def test_a_name_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    ops: tuple[Any, ...] = (Op("aten::[red]x[/nope]", "layer[0]", "forward", 500),)
    assert "layer[0]" in screen(fabricate_run(tmp_path, ops=ops))


def test_the_rate_of_a_layer_leaves_its_update_out_and_the_first_screen_shows_it(tmp_path: Path) -> None:
    convolution = Op("aten::mkldnn_convolution", "features.0", "forward", 3000, flops=6_000_000, bytes=50_000)
    ops = (
        Op("nn.Conv2d", "features.0", "forward", 0, (convolution,)),
        Op("aten::add_", "features.0", "optimizer", 3000),
    )
    run = Run(fabricate_run(tmp_path, ops=ops, residual_us=0))
    (layer,) = run.layers().filter(pl.col("layer") == "features.0").to_dicts()
    assert layer["flops_per_s"] == pytest.approx(6e6 / layer["forward_ns"] * 1e9)
    assert layer["total_ns"] > 1.5 * layer["forward_ns"]
    assert re.search(r"layers \(\d+\).* update ", screen(run.path))
