"""`stepscope fit` on the command line: workloads, functions, scripts, real probes, and slips of the pen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.fit import jobs
from tests.patience import HANG_S

from stepscope.__main__ import main
from stepscope.analysis.memory.limits import BaselineMemory, ProcessPeak
from stepscope.footprint import calibration
from stepscope.footprint.prediction_trials import Trial, probe_batches

SCRIPT = """
import sys
import torch
from torch import nn
width = int(sys.argv[1])
model = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for step in range(1000):
    inputs = torch.randn(32, 20)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")
    assert step < 4, "it ran on"
"""
MODULE = """
import torch
from torch import nn

def training():
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    def batch(n):
        return torch.randn(n, 20), torch.zeros(n, dtype=torch.long)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "make_batch": batch,
            "loss": nn.CrossEntropyLoss()}

def nothing():
    return 3
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "mine_to_fit.py").write_text(MODULE)
    sys.modules.pop("mine_to_fit", None)


def asked(*words: str) -> int:
    try:
        return main(["fit", *words])
    except SystemExit as end:  # how typer says that a command has ended well
        return int(end.code or 0)


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert asked(words[0], "--json", *words[1:]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_workload_gets_a_verdict_a_breakdown_and_ways_to_need_less(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("lenet", "--board", "tx2", "--batch", "512") == 0
    shown = capsys.readouterr().out
    for words in (
        "It likely fits.",
        "was not measured",
        "NVIDIA Jetson TX2",
        "largest batch",
        "Python and torch",
        "activations",
        "what needs less memory",
    ):
        assert words in shown


def test_the_answer_fits_80_columns_and_a_screen_and_says_what_is_behind_v(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert asked("lenet", "--memory", "200MB") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("It does not fit. The limit is 200 MB")
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80
    assert any("-v" in line for line in lines)
    assert "saved" not in " ".join(lines)


def test_the_answer_as_json_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "lenet", "--memory", "1GB", "--optimizer", "adam", "--no-options")
    assert found["verdict"] == "fits"
    assert found["fits"] is True
    assert isinstance(found["breakdown"], dict)
    assert {"largest_batch", "interval", "options", "limit", "method", "not_modelled"} <= set(found)


def test_a_function_of_the_users_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(capsys, "mine_to_fit:training", "--memory", "1GB", "--batch", "8", "--no-options")["batch"] == 8


def test_a_model_that_is_larger_than_any_memory_is_answered_and_not_built(capsys: pytest.CaptureFixture[str]) -> None:
    large = MODULE.replace("nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)", "nn.Linear(20, 10**10), nn.ReLU()")
    large = large.replace("nn.CrossEntropyLoss()", "lambda model, batch: model(batch[0]).sum()")
    Path("large_to_fit.py").write_text(large)
    sys.modules.pop("large_to_fit", None)
    found = answered(capsys, "large_to_fit:training", "--memory", "1GB", "--batch", "2", "--no-options")
    assert found["verdict"] == "does not fit"
    assert float(str(found["peak_bytes"])) > 8e11


def test_data_that_are_looked_at_as_a_batch_is_made_are_made_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    looked = "    x = torch.randn(100, 20)\n    def batch(n):\n        rows = torch.tensor([x[0].tolist()] * n)\n"
    looked += "        return rows, torch.zeros(n, dtype=torch.long)\n"
    own = MODULE[MODULE.index("    def batch") : MODULE.index("    return {")]
    Path("looking_to_fit.py").write_text(MODULE.replace(own, looked))
    sys.modules.pop("looking_to_fit", None)
    assert answered(capsys, "looking_to_fit:training", "--no-options")["method"] == "dry run"


def test_what_the_module_of_a_function_imports_is_in_the_empty_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_for: list[set[str]] = []

    def measured(_allocator: str, imports: Iterable[str]) -> BaselineMemory:
        asked_for.append(set(imports))
        return jobs.MEASURED.environment

    monkeypatch.setattr(calibration, "measured_environment", measured)
    Path("mine_to_fit.py").write_text("import hypothesis\n" + MODULE)
    answered(capsys, "mine_to_fit:training", "--memory", "1GB", "--no-options")
    assert "hypothesis" in asked_for[0]


LOOKING = """
import torch
from torch import nn
class Looking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(20, 3)
    def forward(self, x):
        return self.layer(x if x.sum() > 0 else -x)
"""


def test_a_model_that_looks_at_its_numbers_gets_its_answer_and_why_there_is_no_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = "nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))"
    Path("branching_to_fit.py").write_text(LOOKING + MODULE.replace(own, "Looking()"))
    sys.modules.pop("branching_to_fit", None)
    target = ["branching_to_fit:training", "--memory", "1GB", "--batch", "8"]
    found = answered(capsys, *target, "--plan")
    assert found["method"] == "measured at this batch"
    assert "no plan: aten._local_scalar_dense" in " ".join(map(str, found["notes"]))  # type: ignore[call-overload]
    assert asked(*target, "--calibrate") == 1
    assert "--calibrate: no dry run shows the operators" in capsys.readouterr().err
    beside = ["--figures", "pictures", "--beside", "branching_to_fit:training", "--no-options"]
    assert asked("lenet", "--memory", "1GB", *beside) == 1
    assert "no dry run of branching_to_fit:training to draw" in capsys.readouterr().err


def test_a_script_is_followed_to_its_second_step_on_fake_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "train.py", "--memory", "8GB", "--", "640")
    assert found["method"] == "dry run"
    assert found["largest_batch"] is None


def test_losses_that_a_script_prints_while_it_is_followed_are_said_to_be_made_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fit", "train.py", "--memory", "8GB", "--", "640"]) == 0
    shown = capsys.readouterr()
    first, second, *_ = shown.err.splitlines()
    assert "runs on tensors without values: losses that it prints now mean nothing" in first
    assert second.startswith("loss ")
    assert second not in shown.out


def test_stdout_holds_the_answer_alone_whatever_a_script_writes_there() -> None:
    loud = """
import atexit, os, subprocess, sys
atexit.register(print, "at exit")
atexit.register(os.write, 1, b"below Python at exit\\n")
os.write(1, b"below Python\\n")
subprocess.run(["echo", "a child"])
print("plain", file=sys.__stdout__, flush=True)
"""
    Path("loud.py").write_text(loud + SCRIPT.partition("    assert")[0])
    command = [sys.executable, "-m", "stepscope", "fit", "loud.py", "--memory", "8GB", "--json", "--", "640"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert json.loads(done.stdout)["name"] == "loud"
    for said in ("at exit", "below Python at exit", "below Python", "a child", "plain"):
        assert f"{said}\n" in done.stderr


def test_a_script_that_is_left_in_its_midst_is_said_to_need_at_least_so_much(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("part.py").write_text(
        SCRIPT.replace("range(1000)", "range(4)") + "if torch.rand(1).item() >= 1: raise ValueError\n"
    )
    assert main(["fit", "part.py", "--memory", "8GB", "--", "640"]) == 0
    shown = capsys.readouterr().out
    assert "Cannot tell" in shown
    assert "at least" in shown


def test_a_script_that_fake_tensors_cannot_run_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    made = (
        '@torch.library.custom_op("mine::largest", mutates_args=())\n'
        "def largest(x: torch.Tensor) -> torch.Tensor:\n    return x[x > x.mean()].clone()\n"
    )
    line = "inputs = torch.randn(32, 20)"
    script = SCRIPT.replace("for step", f"{made}for step", 1).replace(line, f"{line}\n    largest(inputs)")
    Path("own_op.py").write_text(script)
    found = answered(capsys, "own_op.py", "--", "640")
    assert found["method"] == "measured at the script's own batch"
    assert "largest" in str(found["stopped"])


def test_numbers_that_a_script_sets_one_by_one_change_no_memory(capsys: pytest.CaptureFixture[str]) -> None:
    line = "inputs = torch.randn(32, 20)"
    set_by_hand = "inputs.apply_(abs).map_(inputs, max)"
    Path("by_hand.py").write_text(SCRIPT.replace(line, f"{line}\n    {set_by_hand}"))
    found = answered(capsys, "by_hand.py", "--", "640")
    assert (found["method"], found["stopped"]) == ("dry run", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lennet"], "did you mean lenet"),
        (["lenet", "--board", "tx3"], "did you mean"),
        (["lenet", "--memory", "many"], "not an amount of memory"),
        (["lenet", "--here", "--board", "tx2"], "two machines"),
        (["lenet", "--batch", "0"], "batch of 0"),
        (["lenet", "--optimizer", "adamm"], "did you mean adam"),
        (["lenet", "--malloc", "tcmaloc"], "tcmalloc"),
        (["lenet", "--precision", "int3"], "fp32 or bf16"),
        (["lenet", "--device", "tpu"], "cpu or cuda"),
        (["lenet", "--", "--width"], "for a script"),
        (["lenet", "--board", "tx2", "--calibrate"], "not a board by name"),
        (["nowhere.py"], "there is no script"),
        (["train.py", "--batch", "4", "--", "64"], "--batch"),
        (["train.py", "--precision", "bf16", "--", "64"], "--precision"),
        (["train.py", "--precision", "float32", "--", "64"], "--precision"),
        (["lenet", "--board", "tx2", "--probe"], "not on --board tx2"),
        (["lenet", "--board", "tx2", "--allocators"], "not on --board tx2"),
        (["lenet", "--device", "cuda", "--memory", "8GB", "--allocators"], "not on --device cuda"),
        (["train.py", "--board", "tx2", "--allocators"], "not on --board tx2"),
        (["mine_to_fit:trainin"], "it has: training"),
        (["mine_to_fit:nothing"], "returned int"),
        (["no_such_module:training"], "there is no module"),
        (["empty.py"], "without an optimizer step"),
    ],
)
def test_a_slip_of_the_pen_is_answered_with_what_to_do(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.py").write_text("print('nothing to train')\n")
    assert asked(*words) == 2
    assert said in capsys.readouterr().err


def peak_of(batch: int) -> ProcessPeak:
    return ProcessPeak((batch * 1_000_000, batch * 1_100_000), (0, 0), (0, 0), (0, 0))


def child(batch: int) -> list[str]:
    """A training that takes 1.2 MB a sample and dies above 10 samples."""
    dies = f"os.kill(os.getpid(), 9) if {batch} > 10 else None"
    says = f"json.dumps({{'peak_bytes': {batch} * 1200000}})"
    code = f"import os, json; {dies}; print({says})"
    return [sys.executable, "-c", code]


def test_a_probe_doubles_the_batch_until_it_fails_and_then_halves_the_way() -> None:
    tried = list(probe_batches(child, peak_of, 4, None))
    assert [each.batch for each in tried] == [4, 8, 16, 12, 10, 11]
    assert "killed" in str(tried[2].failure)
    assert [each.peak_bytes is None for each in tried] == [False, False, True, True, False, True]


def test_a_probe_takes_a_peak_above_the_limit_for_a_failure() -> None:
    assert [each.batch for each in probe_batches(child, peak_of, 4, 6e6)] == [4, 8, 6, 5]


def test_how_far_a_peak_lies_outside_the_prediction_is_a_ratio_to_its_nearer_end() -> None:
    predicted = ProcessPeak((100, 200), (0, 0), (50, 50), (0, 0))
    assert Trial(1, 200, None, predicted).error_ratio == 1.0
    assert Trial(1, 290, None, predicted).error_ratio == pytest.approx(240 / 200)
    assert Trial(1, 100, None, predicted).error_ratio == pytest.approx(0.5)
    assert Trial(1, None, "killed", predicted).error_ratio == 1.0


@pytest.mark.slow
def test_a_real_probe_measures_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("lenet", "--batch", "1", "--memory", "100MB", "--probe", "--no-options") == 0
    assert "measured" in capsys.readouterr().out


def test_a_script_is_not_answered_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert main(["fit", "train.py", "--memory", "8GB", "--device", "cuda"]) == 2
    assert "of a script, fit knows the host memory alone" in capsys.readouterr().err
