"""What the commands do from the command line, `stepscope` does from Python: the same names, files and numbers."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.fabricate import fabricate_run
from tests.patience import HANG_S
from typer.main import get_command

import stepscope
from stepscope.__main__ import build_app, main
from stepscope.errors import RunNotFound, UnknownName, UsageError
from stepscope.record.settings import sampling_period_ns

GUIDE = (Path(__file__).parents[1] / "docs" / "guide-python.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `stepscope ([^`]+)` \| (.+) \|$", GUIDE, re.MULTILINE)
PUBLIC = [name for name in stepscope.__all__ if name != "__version__"]
Typed = Callable[..., str]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """What a command prints on stdout; it has to end well."""

    def answer(*arguments: object) -> str:
        capsys.readouterr()
        try:
            code = main([str(word) for word in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return shown.out

    return answer


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with one finished run below `runs`."""
    monkeypatch.chdir(tmp_path)
    return fabricate_run(Path("runs"), steps=60, power_w=5.0, noise=0.02).absolute()


def _commands() -> Iterator[str]:
    """Every command as it is typed, those of groups with the name of the group."""
    app: Any = get_command(build_app())
    for name, found in app.commands.items():
        below = getattr(found, "commands", None)
        yield from [name] if below is None else (f"{name} {inner}" for inner in below)


def _as_json(content: Any) -> Any:
    """As it comes back from JSON: a tuple is a list there."""
    return json.loads(json.dumps(content))


# The names.


@pytest.mark.parametrize("name", list(_commands()))
def test_every_command_is_in_the_table_of_the_guide(name: str) -> None:
    assert [row for row, _ in ROWS if row == name or row.startswith(f"{name} ")], f"docs/guide-python.md lacks {name}"


def test_every_row_of_the_table_is_a_command_and_names_functions_that_are_there() -> None:
    known = set(_commands())
    for row, python in ROWS:
        assert any(row == name or row.startswith(f"{name} ") for name in known), row
        for path in re.findall(r"stepscope\.([a-z_]+(?:\.[a-z_]+)*)\(", python):
            found: Any = stepscope
            for part in path.split("."):
                found = getattr(found, part)
            assert callable(found), path


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_in_the_guide(name: str) -> None:
    assert f"stepscope.{name}" in GUIDE or name == "schedule"  # of torch.profiler: in guide.md


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_never_another_thing_than_the_package_of_that_name(name: str) -> None:
    """`import stepscope.report` sets `stepscope.report`: a function of that name would be lost."""
    if importlib.util.find_spec(f"stepscope.{name}") is not None:
        assert getattr(stepscope, name) is importlib.import_module(f"stepscope.{name}")


def test_the_names_are_listed_once_and_each_says_what_it_does() -> None:
    assert set(stepscope._PUBLIC) | set(stepscope._MODULES) == set(PUBLIC)
    assert not set(stepscope._PUBLIC) & set(stepscope._MODULES)
    assert dir(stepscope) == sorted(stepscope.__all__)
    assert not [name for name in PUBLIC if not (getattr(stepscope, name).__doc__ or "").strip()]
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        stepscope.mesure  # noqa: B018


def test_importing_resolves_no_name() -> None:
    script = "import sys, stepscope; dir(stepscope); print([m for m in sys.modules if m.startswith('stepscope.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip() == "[]"


def _numbered_anew(page: Path) -> str:
    """A page without the numbers that the drawing library counts on with, from drawing to drawing."""
    return re.sub(r"\b(clip|gradient_)\d+", r"\1", page.read_text(encoding="utf-8"))


def test_without_torch_only_what_trains_is_missing() -> None:
    script = """
import sys
sys.modules["torch"] = None  # an import of torch now fails as if it were not installed
import stepscope
for name in stepscope.__all__:
    try:
        getattr(stepscope, name)
    except ImportError:
        print(name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.split() == ["fit", "fit_script", "fit_workload", "measure", "workload_facts"]


def test_without_torch_a_loop_is_refused_with_what_to_install(tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["torch"] = None
import stepscope
try:
    stepscope.profile(out={str(tmp_path)!r}).__enter__()
except stepscope.errors.MissingDependency as error:
    print(error, error.hint)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert "stepscope[torch]" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_report_all_but_pages_and_pictures_works_and_those_say_what_to_install(here: Path) -> None:
    script = """
import contextlib, io, sys
for name in ("altair", "jinja2", "vl_convert"):
    sys.modules[name] = None  # an import of it now fails as if it were not installed
import stepscope
from stepscope.__main__ import main
from stepscope.api.assistant import Assistant
commands = ["brief last", "forecast last --steps 9", "export last --to csv", "live last", "log last --to prometheus"]
for command in commands:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(command.split()) == 0, command
from stepscope.integrations.prometheus import live_server
with live_server(stepscope.Run("last").path, 0) as port:
    from urllib.request import urlopen
    assert b"stepscope_live_info" in urlopen(f"http://127.0.0.1:{port}/metrics").read()
stepscope.text(stepscope.compare(["last", "last"]))
list(stepscope.live())
for refused in (stepscope.figures, stepscope.view, stepscope.page, lambda: stepscope.figure("step-times")):
    try:
        refused()
    except stepscope.errors.MissingDependency as error:
        print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["pip install 'stepscope[report]'"] * 4


# Of a run that lies on disk.


def test_a_run_is_meant_by_itself_by_its_folder_by_its_name_and_as_the_last(here: Path) -> None:
    run = stepscope.Run(here)
    given = (run, here, str(here), here.name, "last")
    texts = {stepscope.text(one, width=400).rsplit("\n", 2)[0] for one in given}  # the last line is the path as given
    assert len(texts) == 1
    assert stepscope.Run("last").path == Path("runs") / here.name
    assert stepscope.compare(["last", here.name]).to_dict()


def test_without_a_run_the_last_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for function in (stepscope.text, stepscope.page, stepscope.export, lambda: next(stepscope.live())):
        with pytest.raises(RunNotFound, match="there is no run below 'runs'"):
            function()


def test_the_text_is_the_report(here: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert stepscope.text() == typed("report", "last")


def test_the_page_is_that_of_the_report(here: Path, typed: Typed) -> None:
    typed("report", "last", "--html", "--out", "typed.html")
    written = stepscope.page("last", "called.html")
    assert _numbered_anew(written) == _numbered_anew(Path("typed.html"))
    assert stepscope.page(here) == here / "report.html"


def test_a_figure_is_that_of_the_command(here: Path, typed: Typed) -> None:
    shown = typed("figure", "modules", "last", "--format", "vega", "--width", "85", "--out", "typed").strip()
    drawn = stepscope.figure("modules", "last", "called", form="vega", width_mm=85)
    assert drawn.read_bytes() == Path(shown).read_bytes()
    listed = [line.split()[0] for line in typed("figure", "list").splitlines()]
    assert list(stepscope.figures()) == listed


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"name": "modles"}, "unknown figure"), ({"form": "jpg"}, "unknown format"), ({"width_mm": 5.0}, "60 to 420")],
)
def test_a_figure_that_cannot_be_is_refused_before_the_run_is_read(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        stepscope.figure(**{"name": "modules", "run": "nowhere", **wrong})


def test_an_export_is_that_of_the_command(here: Path, typed: Typed) -> None:
    typed("export", "last", "--to", "speedscope", "--steps", "first:10", "--out", "typed.json")
    written = stepscope.export("last", "speedscope", "called.json", steps="first:10")
    assert written.read_bytes() == Path("typed.json").read_bytes()
    assert stepscope.export(here, "csv") == here / "export-csv"


def test_a_forecast_is_that_of_the_command(here: Path, typed: Typed) -> None:
    shown = typed("forecast", "last", "--steps", "5000", "--battery", "50Wh", "--carbon", "400g/kWh", "--json")
    said = stepscope.forecast(steps=5000, battery="50Wh", carbon="400g/kWh")
    assert {total.metric for total in said.totals} >= {"time", "energy", "battery", "carbon"}
    assert _as_json(asdict(said)) == json.loads(shown)


@pytest.mark.parametrize(
    "wrong", [{}, {"steps": 5, "epochs": 1}, {"steps": 0}, {"epochs": -1.0}, {"steps": 9, "battery": 0.0}]
)
def test_a_forecast_of_no_length_or_of_nothing_is_refused(here: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        stepscope.forecast("last", **wrong)


def test_the_old_names_of_amounts_still_hold_and_say_the_new_ones(here: Path) -> None:
    with pytest.warns(DeprecationWarning, match="battery="):
        said = stepscope.forecast(steps=500, battery_wh=50)
    assert said == stepscope.forecast(steps=500, battery=180_000)
    with pytest.warns(DeprecationWarning, match="period="):
        assert sampling_period_ns(0.01, 5) == sampling_period_ns("5ms") == sampling_period_ns(0.005)


def test_epochs_are_steps_of_the_data(tmp_path: Path) -> None:
    workload = {"workload": {"name": "net", "batch_size": 16, "data": {"train_size": 1600}}}
    run = stepscope.Run(fabricate_run(tmp_path, steps=60, header=workload))
    assert stepscope.forecast(run, epochs=2).steps == 200
    with pytest.raises(UsageError, match="how many steps an epoch"):
        stepscope.forecast(fabricate_run(tmp_path / "bare", steps=60, header={"workload": {"name": "net"}}), epochs=2)


def test_a_check_is_that_of_the_command(here: Path, typed: Typed) -> None:
    fabricate_run(Path("other"), steps=60, power_w=5.0, noise=0.02, seed=1)
    shown = json.loads(typed("check", "last", "--against", "other", "--unsure-passes", "--json"))
    found = stepscope.check("last", "other")
    assert shown == _as_json({"outcome": found.outcome, **asdict(found)})
    assert {one.what: one.limit for one in found.judged} == {"time": 0.05, "memory": 0.03, "energy": 0.05}
    assert stepscope.text(found).startswith(f"{found.outcome}: ")
    with pytest.raises(UnknownName, match="unknown limit 'tme'"):
        stepscope.check("last", "other", {"tme": 0.1})


def test_a_comparison_is_that_of_the_command(here: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fabricate_run(Path("other"), steps=60, noise=0.02, seed=1)
    comparison = stepscope.compare(["last", "other"])
    assert stepscope.text(comparison, width=80) == typed("compare", "last", "other")
    typed("compare", "last", "other", "--html", "--out", "typed.html")
    assert _numbered_anew(stepscope.page(comparison)) == _numbered_anew(Path("typed.html"))


def test_a_log_is_that_of_the_command(here: Path, typed: Typed) -> None:
    typed("log", "last", "--to", "codecarbon", "--out", "typed.csv", "--carbon-intensity", "380", "--no-page")
    stepscope.log("last", "codecarbon", "called.csv", carbon_intensity=380)
    assert Path("called.csv").read_text(encoding="utf-8") == Path("typed.csv").read_text(encoding="utf-8")
    with pytest.raises(UnknownName, match="unknown option of 'codecarbon' 'carbon'"):
        stepscope.log("last", "codecarbon", carbon=380)


def test_looking_at_a_run_that_has_ended_is_one_look(here: Path) -> None:
    (now,) = stepscope.live("last")
    assert (now.run, now.status, now.left_s) == (here.name, "ok", None)


def test_a_meter_log_that_cannot_belong_to_the_run_is_refused_alike(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("meter.csv").write_text("time,power\n0,5\n1,5\n2,5\n", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        stepscope.meter("last", "meter.csv")
    assert main(["meter", "last", "meter.csv"]) == refused.value.exit_code
    assert str(refused.value) in capsys.readouterr().err
    with pytest.raises(UsageError, match="there is no meter log"):
        stepscope.meter("last", "none.csv")


def test_the_view_listens_at_its_address_and_asks_for_a_token_beyond_this_machine(here: Path) -> None:
    with stepscope.view("runs", port=0) as server:
        assert server.address == f"http://127.0.0.1:{server.server_address[1]}/"
    with stepscope.view("runs", host="0.0.0.0", port=0) as server:
        assert re.fullmatch(r"http://0\.0\.0\.0:\d+/\?token=[\w-]{20,}", server.address)
    with pytest.raises(RunNotFound):
        stepscope.view("nowhere")


# Of this machine, and of what can be trained.


def test_doctor_is_that_of_the_command(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "proc").mkdir()
    shown, found = json.loads(typed("doctor", "--root", tmp_path, "--json")), _as_json(stepscope.doctor(tmp_path))
    for channel in [*shown["channels"], *found["channels"]]:
        del channel["read_cost_ns"]  # timed anew each time
    assert found == shown
    with pytest.raises(UsageError, match="no folder"):
        stepscope.doctor(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="follows a training"):
        stepscope.doctor(simulate="jetson-tx2", characterise=True)
    with pytest.raises(UsageError, match="nothing to characterise"):
        stepscope.doctor(tmp_path, characterise=True)


def test_doctor_looks_at_a_simulated_board() -> None:
    found = stepscope.doctor(simulate="jetson-tx2")
    assert found["simulated"] == "jetson-tx2"
    assert "ina3221" in {meter["sensor"] for meter in found["power"]}


def test_workloads_and_data_sets_are_those_of_the_commands(typed: Typed) -> None:
    rows = json.loads(typed("workloads", "lenet", "char-lstm-80", "--json"))
    assert stepscope.workload_facts("lenet", "char-lstm-80") == rows
    assert [row["name"] for row in rows] == ["lenet", "char-lstm-80"]
    assert stepscope.data.listed() == json.loads(typed("data", "list", "--json"))
    with pytest.raises(UnknownName):
        stepscope.data.verify(["cifar-11"])


def test_whether_it_fits_is_answered_as_by_the_command(typed: Typed) -> None:
    shown = json.loads(typed("fit", "lenet", "--batch", "8", "--board", "tx2", "--no-options", "--json"))
    found = stepscope.fit_workload("lenet", batch=8, board="tx2", options=False).as_dict()
    unlike = {name for name in shown if shown[name] != _as_json(found)[name]}
    assert unlike <= {"seconds"}
    assert found["verdict"] == "likely fits"  # the board's own process was not measured


def test_a_script_is_asked_whether_it_fits_as_by_the_command(tmp_path: Path, typed: Typed) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(20, int(sys.argv[1]))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.randn(8, 20)).sum().backward()\n"
        "    optimizer.step()\n",
        encoding="utf-8",
    )
    shown = json.loads(typed("fit", script, "--board", "tx2", "--json", "--", "64"))
    found = stepscope.fit_script(script, ["64"], board="tx2")
    assert _as_json(found.as_dict())["live"] == shown["live"]


# Measuring.


def _losses(run: stepscope.Run) -> list[float]:
    return list(run.steps["loss"])


def test_a_workload_is_measured_as_by_the_command(here: Path, typed: Typed) -> None:
    threads, told = torch.get_num_threads(), list[int]()
    run = stepscope.measure(
        "lenet",
        steps=6,
        batch=8,
        optimizer="adam",
        seed=3,
        threads=1,
        memory="off",
        out="called",
        progress=lambda step, loss: told.append(step),
    )
    typed("run", "lenet", "--steps", 6, "--batch", 8, "--optimizer", "adam", "--seed", 3, "--threads", 1,
          "--record-memory", "off", "--out", "typed", "-q")  # fmt: skip
    torch.set_num_threads(threads)
    other = stepscope.Run(next(Path("typed").iterdir()))
    assert _losses(run) == _losses(other)
    assert run.meta["workload"] == other.meta["workload"]
    assert run.meta["recorder"]["mode"] == other.meta["recorder"]["mode"]
    assert {file.name for file in run.path.iterdir()} == {file.name for file in other.path.iterdir()}
    assert told == [1, 2, 3, 4, 5, 6]


def test_a_training_with_threads_of_its_own_leaves_those_of_the_process(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    lenet = stepscope.workloads.find("lenet")
    run = stepscope.measure(lenet, steps=2, batch=2, threads=before + 1, memory="off", out=tmp_path)
    assert (run.meta["threads"], torch.get_num_threads()) == (before + 1, before)


def test_a_simulated_board_is_stamped_and_its_truth_kept(tmp_path: Path) -> None:
    run = stepscope.measure("lenet", steps=8, batch=8, memory="off", simulate="jetson-tx2", out=tmp_path)
    assert run.simulated == "jetson-tx2"
    assert "SIMULATED" in stepscope.text(run)
    assert (run.path / "truth.npz").is_file()


def test_ctrl_c_ends_a_measurement_as_it_ends_any_program_and_the_run_says_so(tmp_path: Path) -> None:
    def press(step: int, loss: float | None) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stepscope.measure("lenet", steps=9, batch=2, memory="off", out=tmp_path, progress=press)
    (folder,) = tmp_path.iterdir()
    assert stepscope.Run(folder).status == "interrupted"


@pytest.mark.parametrize(
    "wrong",
    [
        {"workload": "lenett"},
        {"steps": 0},
        {"batch": 0},
        {"threads": 0},
        {"until_resolved": 1.5},
        {"power_model": "cpu=lots"},
        {"simulate": "jetson-tx3"},
        {"record": "sometimes"},
        {"optimizer": "adma"},
    ],
)
def test_what_cannot_be_measured_is_refused_and_leaves_no_folder(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        stepscope.measure(**{"workload": "lenet", "out": tmp_path / "runs", **wrong})
    assert not (tmp_path / "runs").exists()


# Studies and the suite.


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"name": "kernel"}, "unknown study 'kernel'"),
        ({"name": "kernels", "sizze": 3}, "unknown setting of 'kernels' 'sizze'"),
        ({"name": "kernels", "json": True}, "unknown setting"),
        ({"name": "kernels", "seconds": "soon"}, "--seconds"),
        ({"name": "batch"}, "workload"),
        ({"name": "batch", "workload": "lenet", "repeats": 0}, "--repeats 0"),
        ({"name": "compare"}, "not a separate question"),
    ],
)
def test_a_study_that_cannot_be_is_refused_and_leaves_no_folder(
    asked: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        stepscope.study(asked.pop("name"), **asked, out=tmp_path / "study")
    assert not (tmp_path / "study").exists()


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """The programs of the guide, run once: their folder, what each printed, and what any of them said on stderr."""
    folder, printed, said = tmp_path_factory.mktemp("guide"), list[str](), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.chdir(folder)
        for program in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL):
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                exec(compile(program, "guide-python.md", "exec"), {})
            printed.append(shown.getvalue())
    return folder, printed, said.getvalue()


@pytest.mark.slow
def test_every_program_of_the_guide_runs_and_nothing_else_speaks(guide: tuple[Path, list[str], str]) -> None:
    _, printed, said = guide
    assert len(printed) >= 4
    assert all(printed)
    assert said == ""


@pytest.mark.slow
def test_a_study_is_that_of_the_command(
    guide: tuple[Path, list[str], str], typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(guide[0])
    settings: dict[str, Any] = {"ops": ["linear"], "batch": [1, 2], "channels": [8, 16], "seconds": 0.01, "quick": True}
    found = stepscope.study("kernels", out="study", **settings)
    repeated = found.command.split()[1:]
    assert repeated[:2] == ["study", "kernels"]
    shown = json.loads(typed(*repeated, "--json"))  # goes on with the same folder: nothing is measured again
    assert shown["answer"] == found.answer
    assert shown["tables"] == json.loads(found.to_json())["tables"]
    assert Path("study/page.html").is_file()
    assert found.answer.split()[0] in stepscope.text(found)
    with pytest.raises(UsageError, match="begun with other settings"):
        stepscope.study("kernels", out="study", **{**settings, "batch": 2})


@pytest.mark.slow
def test_a_sweep_is_that_of_the_command(
    guide: tuple[Path, list[str], str], typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(guide[0])
    sweep = Path("sweep")
    assert json.loads((sweep / "sweep.json").read_text())["argv"][:2] == ["suite", "run"]
    shown, table = json.loads(typed("suite", "show", "sweep", "--json")), stepscope.suite.table(sweep)
    assert table["status"].to_list() == ["ok"]
    assert pl.DataFrame(shown["settings"], schema=table.schema).equals(table)
    typed("suite", "export", "sweep", "--to", "csv", "--out", "typed.csv")
    assert stepscope.suite.export(sweep, "csv").read_bytes() == Path("typed.csv").read_bytes()
    assert stepscope.suite.page(sweep) == sweep / "suite.html"
    assert stepscope.suite.results(sweep).name == "sweep"
    assert isinstance(stepscope.suite.scores(sweep), list)
    assert stepscope.suite.listed(".")["sweeps"] == [{"path": "sweep", "runs": 1, "ended": 1}]
    assert stepscope.suite.run(out="sweep", resume=True) == sweep
    with pytest.raises(UnknownName):
        stepscope.suite.export(sweep, "xls")


def test_a_sweep_that_cannot_be_is_refused_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match="unknown tier"):
        stepscope.suite.run("smok")
    with pytest.raises(UsageError, match="takes its folder"):
        stepscope.suite.run(resume=True, fleet="hosts.toml")
    with pytest.raises(UsageError, match="no sweep"):
        stepscope.suite.run(resume=True)
    assert not list(tmp_path.iterdir())
