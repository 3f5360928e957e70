"""A torch.profiler file becomes a run whose numbers are the file's, and what it lacks is said."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.importers.profiler_json import op, record_profile, step, write

from stepscope.analysis.run import Run
from stepscope.errors import OutputNotWritable, UnknownName, UsageError
from stepscope.importers import Options, chrome_events, import_file
from stepscope.importers.chrome_events import read_events
from stepscope.report.terminal_report import render


def imported(path: Path, **options: Any) -> Run:
    return Run(import_file(path, out=path.parent / "runs", options=Options(**options)))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    return record_profile(folder / "real.json", record_shapes=True, with_stack=True)


@pytest.fixture(scope="module")
def real_run(real: Path) -> Run:
    return imported(real, batch_size=8)


def test_a_real_file_gives_its_steps_phases_and_layers(real_run: Run) -> None:
    assert len(real_run.steps) == 4
    assert real_run.steps["samples"].to_list() == [8] * 4
    phases = set(real_run.ops["phase"].cast(pl.String).unique())
    assert {"forward", "backward", "optimizer"} <= phases
    assert real_run.model["type"].to_list() == ["Sequential", "Linear", "Linear", "ReLU"]


def test_backward_time_of_a_real_file_goes_to_the_layer_that_made_it(real_run: Run) -> None:
    ops = real_run.ops.with_columns(pl.col("module", "name", "phase").cast(pl.String))
    nodes = ops.filter((pl.col("phase") == "backward") & (pl.col("name") == "AddmmBackward0"))
    assert set(nodes["module"]) == {"Linear_0", "Linear_1"}
    assert ops.filter(pl.col("name") == "aten::threshold_backward")["module"].unique().to_list() == ["ReLU_0"]


def test_flops_of_a_real_file_come_from_its_shapes(real_run: Run) -> None:
    addmm = real_run.ops.filter(pl.col("name").cast(pl.String) == "aten::addmm")
    assert sorted(set(addmm["flops"])) == [8 * 16 * 4 * 2, 8 * 16 * 16 * 2]


def test_a_file_without_stacks_has_its_flops_and_its_forward_and_nothing_of_it_is_gone(tmp_path: Path) -> None:
    import torch

    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            torch.nn.functional.conv2d(torch.randn(2, 3, 8, 8), weight).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "plain.json"))
    run = imported(tmp_path / "plain.json")
    ops = run.ops.with_columns(pl.col("name", "phase").cast(pl.String))
    assert set(ops.filter(pl.col("name") == "aten::convolution_backward")["flops"]) == {2 * 2 * 6 * 6 * 4 * 27}
    called = ops.filter(pl.col("name").str.contains("conv") & ~pl.col("name").str.contains("(?i)backward"))
    assert set(called["phase"]) == {"forward"}
    assert run.damaged_files() == []


def test_every_page_takes_an_imported_run(real_run: Run) -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(real_run))
    assert "Linear_0" in console.export_text()
    assert real_run.verdict().sentence
    said = {entry.what for entry in real_run.not_measured()}
    assert {"memory by layer", "device", "attribute names of layers"} <= said


def test_what_a_file_lacks_stands_in_the_run(tmp_path: Path) -> None:
    run = imported(record_profile(tmp_path / "bare.json", mark=False))
    lacks = {lack["what"] for lack in run.meta["imported"]["lacks"]}
    assert {"layers", "FLOPs and bytes", "marks of steps"} <= lacks
    assert len(run.steps) == 4  # by the optimizer's ends
    assert run.steps["samples"].null_count() == run.steps["loss"].null_count() == 4
    assert run.ops["flops"].null_count() == len(run.ops)


def test_a_packed_file_gives_the_same_run(real: Path, real_run: Run, tmp_path: Path) -> None:
    packed = tmp_path / "real.json.gz"
    packed.write_bytes(gzip.compress(real.read_bytes()))
    assert imported(packed, batch_size=8).ops.equals(real_run.ops)


def test_a_file_read_in_small_pieces_gives_the_same_run(
    real: Path, real_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_events, "CHUNK", 1009)
    again = Run(import_file(real, out=tmp_path, options=Options(batch_size=8)))
    assert again.ops.equals(real_run.ops)
    assert again.meta["imported"]["sha256"] == real_run.meta["imported"]["sha256"]


def test_operations_are_written_in_windows_that_join_to_the_same(
    real: Path, real_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.importers.torch_profiler.WINDOW_ROWS", 10)
    again = Run(import_file(real, out=tmp_path))
    assert len(list((again.path / "ops").iterdir())) == 4
    assert again.ops.equals(real_run.ops)


def test_own_times_add_up_to_what_lasted(tmp_path: Path) -> None:
    events = [step(0, 0, 100), op("aten::linear", 10, 50), op("aten::addmm", 20, 30), op("aten::relu", 70, 5)]
    run = imported(write(tmp_path / "f.json", events))
    rows = run.ops.select(pl.col("name").cast(pl.String), "self_ns", "parent").rows()
    assert rows == [("aten::linear", 20_000, None), ("aten::addmm", 30_000, 0), ("aten::relu", 5_000, None)]
    assert run.steps.select(pl.col("t1_ns") - pl.col("t0_ns")).item() == 100_000


def test_a_kernel_belongs_to_the_step_and_operation_that_launched_it(tmp_path: Path) -> None:
    events = [
        *(step(0, 0, 100), step(1, 100, 100)),
        op("aten::mm", 80, 15, args={"External id": 5}),
        op("cudaLaunchKernel", 85, 5, "cuda_runtime", args={"External id": 5, "correlation": 77}),
        op("gemm", 120, 40, "kernel", tid=3, args={"device": 0, "stream": 3, "correlation": 77}),
        op("aten::mm", 150, 10, args={"External id": 6}),
        op("gemm", 170, 20, "kernel", tid=3, args={"device": 0, "stream": 3, "External id": 6}),
    ]
    run = imported(write(tmp_path / "f.json", events, deviceProperties=[{"id": 0, "name": "Orin"}]))
    kernels = run.ops.filter(pl.col("device").cast(pl.String) == "cuda:0")
    assert kernels.select("step", "parent", "thread").rows() == [(0, 0, 3), (1, 0, 3)]
    assert run.device["accelerators"][0]["model"] == "Orin"


def test_a_file_of_a_gpu_alone_is_read(tmp_path: Path) -> None:
    """As torch.profiler writes with activities=[ProfilerActivity.CUDA]."""
    kernels = [
        op(f"sgemm_{turn}", 1000 * turn + 50, 250, "kernel", args={"device": 0, "stream": 7, "correlation": turn})
        for turn in range(6)
    ]
    calls = [op("cudaLaunchKernel", 1000 * turn, 5, "cuda_runtime", args={"correlation": turn}) for turn in range(6)]
    run = imported(write(tmp_path / "f.json", [*kernels, *calls]))
    assert set(run.ops["device"].cast(pl.String)) == {"cuda:0"}
    assert run.verdict().bound == "unknown"


def test_the_oldest_form_a_bare_list_with_times_since_1970_is_read(tmp_path: Path) -> None:
    start = 1.6e15
    events = [{"ph": "X", "name": "aten::mm", "ts": start + i, "dur": 1, "tid": "main", "pid": "CPU"} for i in range(3)]
    path = tmp_path / "old.json"
    path.write_text(json.dumps([*events, {"ph": "X", "name": "Optimizer.step#SGD.step", "ts": start + 5, "dur": 2}]))
    run = imported(path)
    assert (len(run.steps), run.meta["clock"]["unix_ns"]) == (1, 1_600_000_000_000_000_000)
    assert run.ops["t0_ns"].to_list() == [0, 1000, 2000, 5000]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.51, 0.52, 0.53, 0.7])
def test_a_file_that_is_cut_off_gives_what_it_holds_and_says_so(tmp_path: Path, share: float) -> None:
    events = [each for i in range(4) for each in (step(i, i * 10, 9), op("aten::mm", i * 10 + 1, 3))]
    cut = write(tmp_path / "cut.json", events)
    cut.write_bytes(cut.read_bytes()[: round(cut.stat().st_size * share)])
    run = imported(cut)
    assert 0 < len(run.steps) < 4
    assert "end of the file" in {lack["what"] for lack in run.meta["imported"]["lacks"]}


def test_a_step_that_is_cut_off_in_its_midst_counts_for_none(tmp_path: Path) -> None:
    events = [
        each for i in range(4) for each in (step(i, i * 10, 9), *(op("aten::mm", i * 10 + at, 1) for at in range(8)))
    ]
    cut = write(tmp_path / "cut.json", events)
    text = cut.read_text(encoding="utf-8")
    cut.write_text(text[: text.index("ProfilerStep#3") + 1000], encoding="utf-8")
    run = imported(cut)
    assert run.ops.group_by("step").len().sort("step").rows() == [(0, 8), (1, 8), (2, 8)]
    assert len(run.steps) == 3


@pytest.mark.parametrize("number", ["²", "1" * 5000, "", "last"])
def test_a_mark_without_a_number_is_a_step_as_well(tmp_path: Path, number: str) -> None:
    marks = [op(f"ProfilerStep#{number}", i * 10, 9, "user_annotation") for i in range(3)]
    run = imported(write(tmp_path / "marks.json", [*marks, op("aten::mm", 1, 3)]))
    assert (len(run.steps), run.meta["imported"]["first_step"]) == (3, None)


@pytest.mark.parametrize(("first", "count", "warmup"), [(0, 12, 3), (2, 12, 1), (5, 12, 0), (0, 4, 0)])
def test_warm_up_counts_what_the_profiler_skipped_and_leaves_enough(
    tmp_path: Path, first: int, count: int, warmup: int
) -> None:
    events = [each for i in range(count) for each in (step(first + i, i * 10, 9), op("aten::mm", i * 10 + 1, 3))]
    assert imported(write(tmp_path / "f.json", events)).warmup_steps == warmup
    assert imported(write(tmp_path / "f.json", events), warmup=2).warmup_steps == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("hello", "unknown format"),
        ("{", "holds no op"),
        ("{}", "holds no op"),
        ("[]", "holds no op"),
        ('{"traceEvents": 5}', "holds no op"),
        ('{"traceEvents": [}', "no Chrome trace"),
        ('{"traceEvents": [1, "x", null, {}]}', "holds no op"),
        ('{"a" 5}', "no Chrome trace"),
        ('{"traceEvents": [{"ph": "X", "name": "a", "ts": NaN}]}', "holds no op"),
        ('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1e300}]}', "holds no op"),
        ("[" * 100_000, "nested too deep"),
        ('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1' + "0" * 10_000 + "}]}", "too many digits"),
    ],
)
def test_a_file_that_is_none_is_refused_and_leaves_nothing(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        imported(path)
    assert not (tmp_path / "runs").exists()


def test_a_packed_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b'{"ph": "M"},' * 1_000_000))
    with pytest.raises(UsageError, match="more than the limit"):
        imported(path, most_bytes=1_000_000)


def test_an_event_without_an_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_events, "MOST_EVENT", 10_000)
    monkeypatch.setattr(chrome_events, "CHUNK", 1000)
    path = tmp_path / "f.json"
    path.write_text('{"traceEvents": [{"name": "' + "x" * 100_000, encoding="utf-8")
    with pytest.raises(UsageError, match="no Chrome trace"):
        imported(path)


def test_a_damaged_packed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b'{"ph": "M"},' * 1000)[:-20])
    with pytest.raises(UsageError, match="damaged"):
        imported(path)


def test_an_unknown_kind_is_refused_with_the_nearest(real: Path) -> None:
    with pytest.raises(UnknownName) as refused:
        imported(real, kind="torch-profile")
    assert "torch-profiler" in str(refused.value.hint)


def test_a_disk_that_is_full_leaves_no_run(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stepscope.runfolder.RunWriter.write_ops", full)
    with pytest.raises(OutputNotWritable, match="No space"):
        import_file(real, out=tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers()))
keys = st.sampled_from(["ph", "cat", "name", "ts", "dur", "pid", "tid", "args"])
inner = st.dictionaries(st.text(max_size=4), values, max_size=3)
anything = st.dictionaries(keys, st.one_of(values, inner), max_size=8)
wild = st.fixed_dictionaries({"ph": st.just("X"), "name": st.text(max_size=9), "ts": values, "args": anything})


@given(events=st.lists(st.one_of(anything, wild), max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_events_are_a_file_is_read_or_refused(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    path = tmp_path / "any.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    try:
        run = imported(path)
    except UsageError:
        return
    assert run.status == "ok"


@given(text=st.text(max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_text_is_it_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.json"
    path.write_text("[" + text, encoding="utf-8")
    taken: list[dict[str, Any]] = []
    with contextlib.suppress(UsageError):
        read_events(path, taken.append)
    assert all(isinstance(event, dict) for event in taken)


def test_events_of_any_layout_are_read_as_json_reads_them(tmp_path: Path) -> None:
    events = [{"ph": "M", "name": 'quo"te}', "args": {"x": [1, {"y": "]}"}]}}, {"ph": "X", "n": -1.5e3}]
    for indent in (None, 0, 3):
        path = tmp_path / "f.json"
        path.write_text(json.dumps({"a": {"b": [1]}, "traceEvents": events, "z": 12.5}, indent=indent))
        taken: list[dict[str, Any]] = []
        assert read_events(path, taken.append) == {"a": {"b": [1]}, "z": 12.5}
        assert taken == events
