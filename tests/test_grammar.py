"""One grammar: what follows a script is the script's, help is in groups, rare options apart, the last run is meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.fabricate import fabricate_run
from tests.patience import HANG_S
from typer.main import get_command

from stepscope.__main__ import build_app, main
from stepscope.api.run_request import RunRequest
from stepscope.cli import PANELS, _script, command_names, load_commands
from stepscope.cli._script import parse_common_options
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
    assert "--threads goes to train.py; an option of stepscope goes before the script" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed",
    [
        "train.py",
        "-q train.py --epochs 2 x",
        "--quiet --out there --period=5ms --no-dither --record first:3 train.py",
        "--batch-size 8 --batch 9 --threads 2 train.py --rate=1",
        "--plug shelly=1.2.3.4 --plug adb=X train.py",
        "-m --no-ceilings json.tool --indent 2",
        "--record-memory off --malloc pinned --updates-per-step 3 train.py",
    ],
)
def test_the_short_way_of_a_script_reads_what_the_library_of_options_reads(
    parser: PARSER, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = typed.split()
    read = parse_common_options(words)
    assert read is not None
    fields = parser.make_context("run", list(words)).params
    quiet = fields.pop("quiet")
    known = {name: value for name, value in fields.items() if value not in (None, []) and name in read[0].__dict__}
    assert read == (RunRequest.from_settings(known, "run"), quiet)


@pytest.mark.parametrize(
    "typed",
    [
        *("lenet --steps 9", "-h", "--helo train.py", "train.py --threads 1", "train.py -q", "train.py -- --epochs 2"),
        *("--threads", "--threads none train.py", "--no-argv train.py", "--html train.py", "--live train.py", ""),
        *("--module=1 train", "--no-module train.py", "--quiet=1 train.py", "-- train.py", "--steps 0 train.py"),
    ],
)
def test_what_needs_a_closer_look_is_left_to_the_library_of_options(typed: str) -> None:
    assert parse_common_options(typed.split()) is None


def test_a_script_is_waited_for_without_the_libraries_of_options_tables_and_arrays(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nweight = torch.nn.Linear(4, 1)\nupdate = torch.optim.SGD(weight.parameters(), lr=0.1)\n"
        "for _ in range(5):\n    weight(torch.ones(2, 4)).sum().backward()\n    update.step()\nprint('trained')\n"
    )
    program = (
        "import sys\nfrom stepscope.runfolder import RunWriter\nfrom stepscope.__main__ import main\n"
        "from stepscope.cli import _script\n"
        "def packed(path):\n    print(*sorted({'typer', 'rich', 'polars', 'numpy', 'torch'} & set(sys.modules)))\n"
        "_script.pack_run = packed\n"
        f"print(main(['run', '-q', '--no-ceilings', '--out', {str(tmp_path / 'runs')!r}, {str(script)!r}]))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert ended.stdout.splitlines() == ["trained", "", "0"]


def test_a_fault_after_the_end_of_a_script_is_said_and_changes_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("ours")

    for place in ("record.ceilings.write_ceilings", "record.empty_process.write_empty_process_bytes"):
        monkeypatch.setattr(f"stepscope.{place}", broken)
    monkeypatch.setattr("stepscope.runfolder.pack.pack", broken)
    monkeypatch.setattr("stepscope.cli._script.report_run", broken)
    for code in (0, 7):
        assert _script.finish_script(tmp_path, code, RunRequest("train.py"), quiet=False) == code
    assert capsys.readouterr().err.count("a fault in Stepscope") == 7


@pytest.mark.parametrize(
    ("command", "typed", "ours", "arguments"),
    [
        ("tune", "train.py --epochs 2 --minutes 1", {"minutes": "1"}, ["--epochs", "2"]),
        ("tune", "--minutes 1 train.py data --rate=1", {"minutes": "1"}, ["data", "--rate=1"]),
        ("tune", "train.py -- --minutes 1", {"minutes": "3.0"}, ["--minutes", "1"]),
        ("study threads", "train.py --epochs 2 --repeats 1", {"repeats": "1"}, ["--epochs", "2"]),
        ("fit", "train.py --epochs 2 --memory 2GB", {"memory": "2GB"}, ["--epochs", "2"]),
    ],
)
def test_behind_a_script_what_is_no_option_of_ours_is_its_own_also_of_other_commands(
    command: str, typed: str, ours: dict[str, str], arguments: list[str]
) -> None:
    found = get_command(build_app(command.split()[0]))
    for name in command.split():
        found = found.commands[name]  # type: ignore[attr-defined]
    context = found.make_context(command, typed.split())
    assert str(context.params["workload" if "study" in command else "target"]) == "train.py"
    assert list(context.params.get("arguments", context.args)) == arguments
    assert {name: context.params[name] or None for name in ours} == ours


@pytest.mark.parametrize("command", ["tune lenet --epochs 2", "fit lenet --epochs 2", "study threads lenet --epochs 2"])
def test_a_workload_has_no_options_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    assert "has no option --epochs" in capsys.readouterr().err


def test_an_option_that_looks_like_one_of_ours_is_said_to_go_to_the_script(
    capsys: pytest.CaptureFixture[str],
) -> None:
    get_command(build_app("tune")).commands["tune"].make_context("tune", ["train.py", "--minuts", "5"])  # type: ignore[attr-defined]
    assert "--minuts is an option of train.py; one of stepscope is --minutes" in capsys.readouterr().err


def test_a_function_of_a_module_is_run_and_tuned_as_a_script_that_trains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepscope.experiments.tune import TuneRequest

    (tmp_path / "mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    orders = TuneRequest("mine:training", batch=16).orders()
    assert Path(orders["script"]).name == "user_training.py"
    assert orders["arguments"] == ["mine:training", "16"]
    assert TuneRequest("mine:training").subject == "mine-training"
    asked: list[object] = []

    def run_script(*given: object, **more: object) -> tuple[Path, int]:
        asked.extend([*given, more])
        return tmp_path, 0

    monkeypatch.setattr("stepscope.record.script.run_script", run_script)
    _script.script_run(RunRequest("mine:training", batch=16, steps=9), _script.settings_of(RunRequest("x")))
    assert asked[1] == ["mine:training", "16"]
    assert asked[-1] == {"name": "mine.training"}
    assert '"steps": 9' in str(asked[2])


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
    with pytest.raises(RunNotFound, match="there are 0 runs with steps"):
        last_runs(2)
    first, second = (fabricate_run(Path("runs"), steps=20) for _ in range(2))
    fabricate_run(Path("runs"), steps=0, ops=(), samples=False)  # the newest, of which nothing can be compared
    assert {path.name for path in last_runs(2)} == {first.name, second.name}
    assert main(["compare", "--json"]) == 0
    said = capsys.readouterr().out
    assert first.name in said
    assert second.name in said
