"""The command line: every file of commands/ is a subcommand, and whatever goes wrong ends in a message and a code."""

from __future__ import annotations

import functools
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import torch
import typer

import stepscope
from stepscope.__main__ import main as stepscope_main
from stepscope.cli import Command, __file__, _load_command, load_commands
from stepscope.cli import _application as cli
from stepscope.cli._script import report_run, status_of_analysis
from stepscope.cli.run import faults_of_training
from stepscope.errors import OutputNotWritable, StepscopeError, UsageError
from stepscope.units import plural

CommandLine = Callable[..., "subprocess.CompletedProcess[str]"]
FOLDER = Path(__file__).parent


def _with_command(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], **context: Any) -> None:
    commands = [Command("fall", function, context), Command("rise", _rise)]
    monkeypatch.setattr(cli, "command_names", lambda: [command.name for command in commands])
    monkeypatch.setattr(cli, "load_commands", lambda name=None: [c for c in commands if name in (None, c.name)])


def _rise() -> None:
    """Rise."""


def test_help_breaks_lines_where_the_terminal_does_and_not_where_the_source_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def climb() -> None:
        """Climb.

        One sentence that
        goes on.
        """

    _with_command(monkeypatch, climb)
    _exit_code("fall", "--help")
    assert "One sentence that goes on." in capsys.readouterr().out


def _exit_code(*argv: str) -> int:
    """Of `main`, which leaves through SystemExit where click has answered itself."""
    try:
        return stepscope_main(argv)
    except SystemExit as end:
        return int(end.code or 0)


def test_every_file_of_the_folder_is_a_command() -> None:
    files = {path.stem for path in FOLDER.iterdir() if path.suffix in ("", ".py") and not path.stem.startswith("_")}
    assert {command.function.__name__ for command in load_commands()} == files
    assert files


@pytest.mark.parametrize("command", load_commands(), ids=lambda command: command.name)
def test_every_command_has_a_help_of_whole_sentences(command: Command) -> None:
    first = (command.function.__doc__ or "").strip().splitlines()[0]
    assert first.endswith(".")
    assert first[0].isupper() or first[0] == "`"


@pytest.mark.parametrize("command", load_commands(), ids=lambda command: command.name)
def test_every_command_shows_its_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(command.name, "--help") == 0
    assert command.name in capsys.readouterr().out


def test_a_trailing_underscore_keeps_a_file_clear_of_a_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(import_old_=_rise, CONTEXT={"ignore_unknown_options": True})
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    assert _load_command("import_old_") == Command("import-old", _rise, {"ignore_unknown_options": True})


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("--version") == 0
    assert capsys.readouterr().out == f"stepscope {stepscope.__version__}\n"


def test_without_a_command_the_help_is_shown(stepscope_cli: CommandLine) -> None:
    shown = stepscope_cli()
    assert "Usage: stepscope" in shown.stdout + shown.stderr


def test_an_unknown_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("reprot") == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: unknown command 'reprot'"
    assert hint.startswith("hint: did you mean report")


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("report", "--no-such-option") == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [UsageError("no", "do this"), OutputNotWritable("disk", "free it"), StepscopeError("x")]
)
def test_a_refusal_is_a_message_a_hint_and_its_code(
    error: StepscopeError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fall() -> None:
        """Fall."""
        raise error

    _with_command(monkeypatch, fall)
    assert _exit_code("fall") == error.exit_code
    shown = capsys.readouterr()
    hint = f"hint: {error.hint}\n" if error.hint else ""
    assert (shown.out, shown.err) == ("", f"error: {error}\n{hint}")


def test_a_fault_of_ours_shows_its_traceback_and_how_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fall() -> None:
        """Fall."""
        raise RuntimeError("this should not happen")

    _with_command(monkeypatch, fall)
    assert _exit_code("fall") == cli.INTERNAL_ERROR
    shown = capsys.readouterr().err
    assert "RuntimeError: this should not happen" in shown
    assert f"fault in Stepscope {stepscope.__version__}" in shown
    assert "open an issue" in shown


def test_what_an_error_quotes_does_not_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fall() -> None:
        """Fall."""
        raise UsageError("no \x1b]0;mine\x07", "\x9b31m\u202e")

    _with_command(monkeypatch, fall)
    assert _exit_code("fall") == UsageError.exit_code
    assert not set(capsys.readouterr().err) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize("ends", [KeyboardInterrupt, typer.Abort])
def test_ctrl_c_ends_with_130_and_without_a_traceback(
    ends: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fall() -> None:
        """Fall."""
        raise ends

    _with_command(monkeypatch, fall)
    assert _exit_code("fall") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_command_chooses_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall() -> None:
        """Fall."""
        raise typer.Exit(17)

    _with_command(monkeypatch, fall)
    assert _exit_code("fall") == 17


def test_a_command_may_take_options_that_are_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def fall(arguments: Annotated[list[str], typer.Argument()]) -> None:
        """Fall."""
        taken.extend(arguments)

    _with_command(monkeypatch, fall, ignore_unknown_options=True)
    assert _exit_code("fall", "a", "--lr", "0.1") == 0
    assert taken == ["a", "--lr", "0.1"]


def test_characters_that_stdout_cannot_encode_are_replaced_but_not_where_a_script_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fall() -> None:
        """Fall."""
        typer.echo("▲ 5 ms, 日 Grüße")

    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1", newline="\n"))
    assert _exit_code("run", "no_such_script.py") == UsageError.exit_code
    assert sys.stdout.errors == "strict"
    _with_command(monkeypatch, fall)
    assert _exit_code("fall") == 0
    sys.stdout.flush()
    assert written.getvalue() == "^ 5 ms, ? Grüße\n".encode("latin-1")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("wanted", [True, False])
def test_a_refusal_has_no_colour_where_none_is_wanted(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "" if wanted else "1")
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert _exit_code("reprot") == 2
    assert ("\x1b[" in terminal.getvalue()) is wanted


def test_typer_does_not_replace_the_hook_that_shows_a_users_own_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = sys.excepthook
    _with_command(monkeypatch, _rise)
    assert _exit_code("rise") == 0
    assert sys.excepthook is hook


def test_the_module_can_be_run_by_name(cold_python: CommandLine) -> None:
    shown = cold_python("-m", "stepscope", "--version")
    assert (shown.returncode, shown.stdout) == (0, f"stepscope {stepscope.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["report", "nowhere"], 4, "no run folder at"),
        (["run", "lenett"], 2, "unknown workload 'lenett'"),
        (["run", "no_such_script.py"], 2, "no script"),
        (["export", "nowhere"], 4, "no run folder at"),
        (["export", "nowhere", "--to", "perfeto"], 2, "unknown export 'perfeto'"),
        (["figure", "memroy", "nowhere"], 2, "unknown figure 'memroy'"),
        (["figure", "memory", "nowhere"], 4, "no run folder at"),
        (["live"], 4, "there is no run below 'runs'"),
        (["live", "nowhere"], 4, "no run at 'nowhere'"),
        (["run", "lenet", "--batch", "0"], 2, "--batch 0"),
        (["run", "lenet", "--period", "soon"], 2, "--period soon"),
        (["run", "lenet", "--record", "sometimes"], 2, "cannot record 'sometimes'"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line_and_what_to_do_in_another(
    arguments: list[str], code: int, said: str, stepscope_cli: CommandLine, tmp_path: Path
) -> None:
    answer = stepscope_cli(*arguments)
    assert answer.returncode == code, answer.stderr
    error, *hint = answer.stderr.strip().splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert [line.partition(": ")[0] for line in hint] in (["hint"], [])
    assert not (tmp_path / "runs").exists(), "a refused run leaves no folder"


def test_an_out_folder_that_cannot_be_written_is_refused(stepscope_cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file in the place of the folder")
    answer = stepscope_cli("run", "lenet", "--steps", "1", "--out", "taken")
    assert answer.returncode == 5
    assert answer.stderr.strip().startswith("error: cannot write a run below 'taken'")


def test_doctor_shows_a_simulated_board_and_says_that_it_is_one(stepscope_cli: CommandLine) -> None:
    answer = stepscope_cli("doctor", "--simulate", "jetson-tx2", "--json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["simulated"] == "jetson-tx2"
    assert "ina3221" in {entry["sensor"] for entry in found["power"]}
    refused = stepscope_cli("doctor", "--simulate", "jetson-tx2", "--characterise")
    assert refused.returncode == 2


def test_a_report_that_fails_does_not_become_the_end_of_a_training_that_went_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(run: object) -> object:
        raise ValueError("a fault of ours")

    monkeypatch.setattr("stepscope.report.first_screen.render", broken)
    arguments = ["run", "lenet", "--steps", "5", "--batch", "4", "--record-memory", "off", "--out", str(tmp_path)]
    assert _exit_code(*arguments) == 0
    said = capsys.readouterr().err
    assert "a fault of ours" in said
    assert "the run is whole" in said
    assert [path.name for path in tmp_path.glob("*/run.json")] == ["run.json"]


BROKEN_LOSS = "def loss(model):\n    return model.nothing_there\n"


def test_what_the_code_of_a_workload_raises_is_no_fault_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BROKEN_LOSS)
    names = _compiled(BROKEN_LOSS, str(file))
    failed = "the training of 'mynet' failed: AttributeError"
    with pytest.raises(StepscopeError, match=failed) as refusal, faults_of_training("mynet"):
        names["loss"](object())
    assert (refusal.value.exit_code, refusal.value.hint) == (1, "mend its file")
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):\n")
    assert f'File "{file}", line 2, in loss' in shown
    assert str(Path(stepscope.__file__).parent) not in shown


def test_an_exit_within_the_code_of_the_user_is_an_error_that_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leaves = _compiled("import sys\ndef leave(name):\n    sys.exit(0)\n", str(tmp_path / "mine.py"))["leave"]
    monkeypatch.setattr("stepscope.workloads.refuse_unknown", leaves)
    assert _exit_code("run", "lenet") == 1
    assert f"sys.exit(0) in {tmp_path / 'mine.py'}, line 3 ended this command" in capsys.readouterr().err


HOOK, WRONG_SHAPE = (f"def {name}(layer, x):\n    return layer(x)\n" for name in ("call", "loss"))


def test_what_torch_raises_below_our_hook_in_a_layer_of_the_user_is_no_fault_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passes_on = _compiled(HOOK, str(Path(stepscope.__file__).parent / "record" / "torch_hooks.py"))["call"]
    loss = _compiled(WRONG_SHAPE, str(tmp_path / "mine.py"))["loss"]
    failed = "the training of 'mine.py:mynet' failed: RuntimeError"
    with pytest.raises(StepscopeError, match=failed) as refusal, faults_of_training("mine.py:mynet"):
        loss(functools.partial(passes_on, torch.nn.Linear(3, 5)), torch.zeros(2, 4))
    assert refusal.value.hint == "mend its file"
    assert 'mine.py", line 2, in loss' in capsys.readouterr().err


def _compiled(code: str, file: str) -> dict[str, Any]:
    """Return what a code defines, as if it stood in this file."""
    names: dict[str, Any] = {}
    exec(compile(code, file, "exec"), names)
    return names


def test_what_our_own_code_raises_beside_a_training_stays_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="Cannot specify"), faults_of_training("mynet"):
        plural("many", "step")  # type: ignore[arg-type]


def test_the_page_of_a_run_is_told_on_stderr_where_stdout_holds_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepscope.report.html.write", lambda run, path: path)
    monkeypatch.setattr("stepscope.analysis.run.Run", lambda path: path)
    monkeypatch.setattr("stepscope.cli._script._report_safely", lambda *_: None)
    report_run(tmp_path, (), quiet=True, html=True, of_a_script=False, as_json=True)
    shown = capsys.readouterr()
    assert (shown.out, shown.err.startswith("page: ")) == ("", True)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("--ceilings --precision foo", "unknown precision 'foo'"),
        ("--precision bf16", "--precision belongs to --ceilings"),
        ("--threads 2", "--threads belongs to --ceilings"),
        ("--ceilings --simulate jetson-tx2", "what is measured would be this machine's"),
    ],
)
def test_doctor_refuses_what_it_would_not_do(typed: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("doctor", *typed.split()) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(("stated", "precision"), [("fp32", "float32"), ("float32", "float32"), ("bf16", "bf16")])
def test_fit_takes_the_precisions_by_the_names_that_the_other_commands_have(stated: str, precision: str) -> None:
    assert stepscope.requests.FitRequest("lenet", precision=stated).precision == precision


def test_an_analysis_that_takes_seconds_is_announced_where_stderr_is_a_file_and_a_quick_one_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with status_of_analysis():
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("stepscope.cli._script._LONG", 0.0)
    said = ""
    with status_of_analysis():
        while not said:
            said = capsys.readouterr().err
    assert "reading the run" in said
