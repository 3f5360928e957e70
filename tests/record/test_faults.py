"""What happens to the training and to the run when something breaks; real processes, really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.patience import HANG_S, until
from tests.record.loops import record, simple_loop
from torch import nn

import stepscope
from stepscope.errors import OutputNotWritable, UsageError
from stepscope.record import kineto, torch_private
from stepscope.record.run_facts import status_of
from stepscope.runfolder import RunReader

LOOP = """
import resource, signal, sys, torch
import stepscope
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
out, steps, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with stepscope.profile(model, out=out, record="all") as scope:
    print("run", scope.path, flush=True)
    for step in range(steps):
        optimizer.zero_grad(); model(torch.randn(4, 8)).sum().backward(); optimizer.step(); scope.step()
        if step == 20 and limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if step % 50 == 0:
            print("step", step, flush=True)
        if step == 50:
            sys.stdin.readline()
print("trained", steps)
"""


def start(out: Path, steps: int, limit: int = 0) -> tuple[subprocess.Popen[str], Path]:
    """A training process, 51 steps into its run, that waits for a line on its stdin."""
    command = [sys.executable, "-c", LOOP, str(out), str(steps), str(limit)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    path = Path(process.stdout.readline().split()[1])
    while not process.stdout.readline().startswith("step 50"):
        assert process.poll() is None, process.stderr and process.stderr.read()
    return process, path


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def samplers_of(run: Path) -> list[int]:
    """Processes that sample for this run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"stepscope.record.sampler" in words and str(run).encode() in words:
            found.append(int(entry.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes through /proc")
def test_a_killed_trainer_leaves_a_readable_run_and_no_orphan(tmp_path: Path) -> None:
    process, path = start(tmp_path, 1_000_000)
    go_on(process)
    until(lambda: RunReader(path).ops.height, "operators on the disk")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: not samplers_of(path), "the end of the sampler")
    run = RunReader(path)
    assert run.status == "interrupted"
    assert run.steps.height > 0
    assert run.ops.height > 0
    assert run.model["module"].to_list() == [""]
    assert run.damaged == []


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes through /proc")
def test_a_killed_sampler_is_noted_and_the_training_goes_on(tmp_path: Path) -> None:
    process, path = start(tmp_path, 300)
    for sampler in samplers_of(path):
        os.kill(sampler, signal.SIGKILL)
    until(lambda: not samplers_of(path), "the end of the sampler")
    out, error = process.communicate(timeout=HANG_S)
    assert (process.returncode, "trained 300" in out) == (0, True), error
    run = RunReader(path)
    assert run.status == "ok"
    assert run.steps.height == 300
    assert "sampler-lost" in [event["kind"] for event in run.events]


def test_a_full_disk_costs_rows_and_not_the_training(tmp_path: Path) -> None:
    process, path = start(tmp_path, 700, limit=30_000)
    out, error = process.communicate(timeout=HANG_S)
    assert (process.returncode, "trained 700" in out) == (0, True), error
    assert error == ""
    run = RunReader(path)
    assert run.steps.height > 0
    assert {"steps-lost", "ops-lost"} & {event["kind"] for event in run.events}


def test_a_signal_from_the_keyboard_closes_the_run_as_interrupted(tmp_path: Path) -> None:
    process, path = start(tmp_path, 1_000_000)
    go_on(process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=HANG_S)
    assert "KeyboardInterrupt" in error
    assert (RunReader(path).status, RunReader(path).meta["reason"]) == ("interrupted", "Ctrl-C")


def test_an_exception_of_the_loop_passes_through_and_the_run_says_failed(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)

    def loop(step: Any) -> None:
        simple_loop(model, 3)(step)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        record(loop, tmp_path, model)
    run = RunReader(next(tmp_path.iterdir()))
    assert (run.status, run.meta["reason"]) == ("failed", "ZeroDivisionError: mine")
    assert run.steps.height == 3


def test_running_out_of_memory_is_a_status_of_its_own() -> None:
    assert status_of(MemoryError())[0] == "oom"
    assert status_of(torch.cuda.OutOfMemoryError("CUDA out of memory"))[0] == "oom"
    assert status_of(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1"))[0] == "oom"
    for words in ("CUDA error: out of memory", "MPS backend out of memory (MPS allocated: 1)"):
        assert status_of(RuntimeError(words))[0] == "oom"
    assert status_of(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))[0] == "oom"
    assert status_of(SystemExit(0)) == ("ok", None)
    assert status_of(SystemExit(3))[0] == "failed"


def test_a_place_that_cannot_be_written_is_refused_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputNotWritable, match="file"):
        stepscope.profile(out=tmp_path / "file").__enter__()


def test_a_run_in_a_generator_that_its_consumer_leaves_is_ok(tmp_path: Path) -> None:
    def epochs() -> Generator[Path, None, None]:
        with stepscope.profile(out=tmp_path, record="none") as scope:
            while True:
                scope.step()
                yield scope.path

    training = epochs()
    path = next(training)
    training.close()
    assert RunReader(path).status == "ok"


def test_a_status_that_is_none_is_said_where_the_run_is_closed_with_it(tmp_path: Path) -> None:
    scope = stepscope.profile(out=tmp_path, record="none").__enter__()
    scope.step()
    scope.close("done")
    run = RunReader(scope.path)
    assert (run.status, "'done'" in str(run.meta["reason"])) == ("interrupted", True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"record": 10}, "cannot record 10"),
        ({"model": len}, "builtin_function_or_method is not a model"),
        ({"model": [nn.Linear(1, 1), None]}, "NoneType is not a model"),
        ({"samples": "32"}, "samples='32' is not a count"),
        ({"samples": 8.5}, "samples=8.5 is not a count"),
        ({"samples": -3}, "samples=-3 is not a count"),
        ({"period": float("nan")}, "period=nan is not a time"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_the_training(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        stepscope.profile(out=tmp_path, **options).__enter__()


def test_models_may_come_from_a_generator(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    run = record(simple_loop(model, 2), tmp_path, (part for part in [model]))
    assert set(run.model["type"].to_list()) == {"Linear"}


def test_a_period_below_a_millisecond_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 ms"):
        stepscope.profile(out=tmp_path, period=0.0001).__enter__()


def test_a_profiler_of_the_users_own_takes_over_and_still_works(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    seen: list[int] = []

    def loop(step: Any) -> None:
        simple_loop(model, 5)(step)
        with torch.profiler.profile() as own:
            simple_loop(model, 2)(step)
        seen.append(len(own.key_averages()))

    run = record(loop, tmp_path, model)
    assert seen[0] > 0
    assert run.steps.height == 7
    assert run.steps.filter("recorded").height == 5
    assert "recording-stopped" in [event["kind"] for event in run.events]


def test_a_step_inside_a_module_call_does_not_break_later_calls(tmp_path: Path) -> None:
    inner = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)

    class Trainer(nn.Module):
        def forward(self, step: Any) -> None:
            for _ in range(12):
                optimizer.zero_grad()
                inner(torch.randn(4, 8)).sum().backward()
                optimizer.step()
                step()

    trainer = Trainer()

    def loop(step: Any) -> None:
        trainer(step)
        trainer(step)

    assert record(loop, tmp_path, record="every:2").steps.height == 24


def test_a_torch_that_has_lost_the_private_parts_records_steps_without_ops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(shapes: bool, cuda: bool) -> Any:
        _raises()

    def _raises() -> None:
        raise AttributeError("module 'torch._C._profiler' has no attribute 'ProfilerConfig'")

    monkeypatch.setattr(kineto, "start_window", gone)
    model = nn.Linear(8, 1)
    run = record(simple_loop(model, 5), tmp_path, model)
    assert run.steps.height == 5
    assert run.ops.height == 0
    assert [event["kind"] for event in run.events].count("ops-lost") == 1


def test_this_torch_still_has_every_private_name_that_is_used() -> None:
    assert vars(nn.Module)["__call__"] is nn.Module._wrapped_call_impl, "Module.__call__ does more: see torch_hooks.py"
    assert callable(torch.autograd._engine_run_backward)  # type: ignore[attr-defined]
    assert "__next__" in vars(torch.utils.data.dataloader._BaseDataLoaderIter)
    assert torch_private.autograd_sequence() >= 0
    assert callable(torch._C._autograd._clear_callbacks)  # type: ignore[attr-defined]
    assert hasattr(torch._C._profiler, "_RecordFunctionFast")
    assert hasattr(torch.autograd.profiler.profile, "_prepare_trace")
    window = kineto.start_window(shapes=True, cuda=False)
    torch.ones(2).sum()
    event = window.stop()[0]
    for name in ("start_ns", "duration_ns", "sequence_nr", "fwd_thread_id", "scope", "shapes", "concrete_inputs"):
        assert hasattr(event, name), f"_KinetoEvent.{name} is gone"


def test_nothing_of_the_profilers_own_chatter_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    kineto.start_window(shapes=False, cuda=False).stop()
    assert capfd.readouterr().err == ""
