"""One grammar: what follows a script is the script's, help is in groups, rare options apart, the last run is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from tests.fabricate import fabricate_run
from typer.main import get_command

from stepscope.__main__ import build_app, main
from stepscope.cli import PANELS, command_names, load_commands
from stepscope.cli.run import PARSER
from stepscope.errors import RunNotFound
from stepscope.run_paths import last_runs


@pytest.fixture(scope="module")
def parser() -> PARSER:
    command = get_command(build_app("run")).commands["run"]  # type: ignore[attr-defined]
    assert isinstance(command, PARSER)
    return command


@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        ("train.py --epochs 2", ["--epochs", "2"]),
        ("train.py -- --epochs 2", ["--epochs", "2"]),
        ("--out runs -q train.py --steps 9 -q", ["--steps", "9", "-q"]),
        ("train.py -q -- --epochs 2", ["--epochs", "2"]),  # as it was typed before
        ("train.py data -- more", ["data", "--", "more"]),
        ("train.py --rate 1 -- more", ["--rate", "1", "--", "more"]),
        ("train.py --period 5ms -q -- more -- less", ["more", "--", "less"]),
        ("-m pkg.train --epochs 2", ["--epochs", "2"]),
        ("--period 5ms train.py data --epochs=2", ["data", "--epochs=2"]),
        ("train.py", []),
        ("lenet --steps 9", []),
        ("--threads 1 lenet --steps 9", []),
    ],
)
def test_what_follows_a_script_is_its_own(parser: PARSER, typed: str, arguments: list[str]) -> None:
    context = parser.make_context("run", typed.split())
    assert list(context.params["arguments"]) == arguments
    assert str(context.params["target"]) in ("train.py", "pkg.train", "lenet")


def test_an_option_of_ours_behind_the_script_is_passed_on_and_said(
    parser: PARSER, capsys: pytest.CaptureFixture[str]
) -> None:
    context = parser.make_context("run", ["train.py", "--threads", "1"])
    assert context.params["arguments"] == ["--threads", "1"]
    assert "--threads of train.py: options of stepscope go before the script" in capsys.readouterr().err


def test_batch_has_the_name_that_other_tools_give_it(parser: PARSER) -> None:
    names = [parser.make_context("run", ["lenet", name, "8"]).params["batch"] for name in ("--batch", "--batch-size")]
    assert names == ["8", "8"]


def test_every_command_has_a_place_in_the_help() -> None:
    assert {name for names in PANELS.values() for name in names} == set(command_names())
    shown = typer.main.get_group(build_app()).commands
    panels = [getattr(command, "rich_help_panel", None) for command in shown.values()]
    assert list(dict.fromkeys(panels)) == list(PANELS)


def test_few_options_of_run_are_in_its_first_list(parser: PARSER) -> None:
    advanced = [option.name for option in parser.params if getattr(option, "rich_help_panel", None) == "Advanced"]
    assert len(advanced) >= 10
    assert len(parser.params) - len(advanced) <= 20
    assert {"period", "dither", "malloc"} <= set(advanced)


@pytest.mark.parametrize("command", [[], *[[command.name] for command in load_commands()]], ids=lambda c: " ".join(c))
def test_a_short_name_asks_for_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "-h"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_compare_means_the_last_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunNotFound, match="there are 0 runs"):
        last_runs(2)
    first, second = (fabricate_run(Path("runs"), steps=20) for _ in range(2))
    assert {path.name for path in last_runs(2)} == {first.name, second.name}
    assert main(["compare", "--json"]) == 0
    said = capsys.readouterr().out
    assert first.name in said
    assert second.name in said
