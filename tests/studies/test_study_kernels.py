"""The kernel study: its parts compute what they say, its times are a bare loop's, its judgements are known."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import CommandLine
from tests.fabricate import CEILINGS
from torch import nn
from torch.nn import functional

from stepscope import workloads
from stepscope.errors import UsageError
from stepscope.experiments.engine.engine import ProgressCallbacks, answer_study
from stepscope.experiments.kernels import OPS, Kernels
from stepscope.experiments.kernels.measurements import VISITS, reached_ceilings
from stepscope.experiments.kernels.rates import (
    HERE,
    KernelRate,
    below_one_verdict,
    best_kernels,
    cliffs,
    imported_conv_5_vs_3,
    parse_table,
    rates_frame,
    read_tables,
)
from stepscope.experiments.kernels.shapes import AXES, Kernel, KernelAxes, kernels_of, same_padding_conv_sizes
from stepscope.experiments.kernels.study import (
    Evidence,
    _frames,
    _most_expensive_op,
    _rate_rows,
    _step_table,
    build_findings,
)
from stepscope.experiments.kernels.timing import (
    BOTH,
    FEWEST,
    FORWARD,
    INPUT,
    WEIGHT,
    WHOLE,
    time_call,
    time_in_turn,
    timed_calls_of,
    timer_to_bare_loop_ratio,
    times_a_step,
)
from stepscope.report.charts.operators import _longest_lines, kernel_charts
from stepscope.report.study_results import render


@pytest.fixture(autouse=True)
def _known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.experiments.kernels.measurements.ceilings", lambda *asked, **how: CEILINGS)


SMALL = Kernels(
    ops=("conv", "batch_norm", "optimizer"), kernel=(3, 5, 7), batch=(2,), channels=(4,), sizes=(8,), parameters=(100,),
    seconds=0.001, threads=1, quick=True,
)  # fmt: skip
TABLE = """('output_channels', 32)
('kernel_size', {kernel})
('input_channels', 32)
('batch_size', 32)
('image_size', 256)
-----------  ---------------  ---------------  ---------------  ---------------  ---------------
Name                CPU time        CUDA time            Calls        CPU total       CUDA total
-----------  ---------------  ---------------  ---------------  ---------------  ---------------
torch::autograd::GraphRoot  44.864us   15.840us                1         44.864us         15.840us
{name}            510.882us     {us:.3f}us                1        510.882us     {us:.3f}us
sum               208.545us      985.046us                1        208.545us        985.046us
"""
TX2_MS = {1: (39.0, 74.4), 3: (115.0, 178.7), 5: (131.7, 350.8), 7: (464.7, 581.1)}  # forward, weight gradient


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Profiler tables with the published times of a TX2, their first repeat dearer, five repeats each."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for kernel, both in TX2_MS.items():
        for part, name, ms in zip(("forward", "backward"), ("conv2d", "CudnnConvolutionBackward"), both, strict=True):
            for repeat in range(5):
                us = 1e3 * (ms + (100 if repeat == 0 else 0.01 * repeat))
                text = TABLE.format(kernel=kernel, name=name, us=us)
                path = folder / f"32_32_256_32_{kernel}_jetson_{part}_{repeat}.txt"
                path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_parts_that_run_and_a_sweep_over_each_of_its_axes(op: str) -> None:
    found = Kernels(quick=True).sweep.of(op)
    assert {axis for axis in AXES[op] if len({kernel.place[axis] for kernel in found}) > 1} == set(AXES[op])
    kernel = found[0]
    real, unreal = timed_calls_of(kernel), timed_calls_of(kernel, "meta")
    for name, part in real.items():
        part.call()
        assert part.flops > 0
        assert (part.flops, part.bytes) == (unreal[name].flops, unreal[name].bytes)
    if WHOLE in real:
        rest = BOTH if BOTH in real else INPUT
        assert real[WHOLE].flops == real[FORWARD].flops + real[rest].flops


def _counting(begun: list[str]) -> ProgressCallbacks:
    return ProgressCallbacks(begins=lambda point, place, count: begun.append(point.title))


def test_the_gradients_of_a_convolution_are_those_of_autograd() -> None:
    kernel = Kernel("conv", same_padding_conv_sizes({"kernel": 3, "batch": 2, "channels": 4, "size": 6}))
    torch.manual_seed(0)
    parts = timed_calls_of(kernel)
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 6, 6, requires_grad=True), torch.randn(4, 4, 3, 3, requires_grad=True)
    y = functional.conv2d(x, w, padding=1)
    known_dx, known_dw = torch.autograd.grad(y, (x, w), torch.randn_like(y))
    assert torch.allclose(parts[FORWARD].call(), y, atol=1e-5)
    dx, dw, _ = parts[BOTH].call()
    assert torch.allclose(dx, known_dx, atol=1e-4)
    assert torch.allclose(dw, known_dw, atol=1e-4)
    assert parts[WEIGHT].call()[0] is None
    assert parts[INPUT].call()[1] is None
    assert parts[FORWARD].flops == 2 * 2 * 6 * 6 * 4 * 4 * 9


def test_timer_and_bare_loop_agree_in_the_time_of_the_processor() -> None:
    x = torch.randn(160, 160)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # others would wait in a loop, which is time of the process
    try:
        ratios = (timer_to_bare_loop_ratio(lambda: torch.mm(x, x), 1, time.process_time)["ratio"] for _ in range(6))
        assert any(
            abs(ratio - 1) < 0.2 for ratio in ratios
        )  # a busy machine moves it by some percent, a wrong count more
    finally:
        torch.set_num_threads(threads)


def test_a_time_has_blocks_enough_for_an_interval() -> None:
    found = time_call(lambda: sum(range(200)), 0.002)
    assert found.blocks >= FEWEST
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.low_ns <= found.ns <= found.high_ns


def test_calls_in_turn_have_a_time_a_round_each() -> None:
    found = time_in_turn({"a": lambda: None, "b": lambda: None}, 4, 0.001)
    assert {name: len(times) for name, times in found.items()} == {"a": 4, "b": 4}


def _row(ns: float, part: str = FORWARD, half: float | None = 0.01, **place: int) -> KernelRate:
    low, high = (None, None) if half is None else (ns * (1 - half), ns * (1 + half))
    return KernelRate(HERE, Kernel("conv", dict(place), place), part, ns, low, high, 1000, 1000)


def test_a_cliff_is_found_where_time_for_a_flop_jumps_and_nowhere_else() -> None:
    rows = [_row(100, kernel=3, batch=1), _row(110, kernel=5, batch=1), _row(200, kernel=7, batch=1)]
    found = cliffs([*rows, _row(900, kernel=7, batch=2)])
    assert [(each.axis, each.before, each.after) for each in found] == [("batch", 1, 2), ("kernel", 5, 7)]
    assert found[1].jump == pytest.approx(200 / 110)
    assert found[1].low == pytest.approx(200 * 0.99 / (110 * 1.01))


def test_a_jump_that_its_intervals_explain_is_no_cliff() -> None:
    assert cliffs([_row(100, half=0.4, batch=1), _row(150, half=0.4, batch=2)]) == []
    unknown = cliffs([_row(100, half=None, batch=1), _row(150, half=None, batch=2)])
    assert [each.low for each in unknown] == [None]


def test_the_sweet_spot_is_the_cheapest_flop_with_those_as_good() -> None:
    spot = best_kernels([_row(100, batch=1), _row(101, batch=2), _row(150, batch=3)])[0]
    assert (spot.best.ns, spot.worst.ns, spot.alike, spot.of) == (100, 150, 1, 3)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.7, 0.9, "holds"),
        (1.1, 1.3, "does not hold"),
        (0.9, 1.1, "cannot be judged"),
        (None, None, "cannot be judged"),
    ],
)
def test_a_ratio_is_judged_by_its_whole_interval(low: float | None, high: float | None, said: str) -> None:
    assert below_one_verdict({"ratio": 1.0, "low": low, "high": high}) == said


def test_imported_tables_give_the_published_rates_and_the_known_cliff(tables: Path) -> None:
    found = read_tables(tables)
    assert len(found.tables) == 40
    rates = {(row.part, row.kernel.place["kernel"]): row.flops_per_s / 1e9 for row in found.rows()}
    assert rates[FORWARD, 3] == pytest.approx(331, rel=0.01)
    assert rates[FORWARD, 5] == pytest.approx(790, rel=0.01)
    assert rates[FORWARD, 7] == pytest.approx(432, rel=0.01)
    assert (FORWARD, "kernel", 5, 7) in {(c.part, c.axis, c.before, c.after) for c in cliffs(found.rows())}
    pairs = {row["part"]: row for row in imported_conv_5_vs_3(found.by_size())}
    assert pairs[FORWARD]["ratio"] == pytest.approx(246.7 / 464.7, rel=0.01)
    assert below_one_verdict(pairs[FORWARD]) == "holds"


def test_a_table_without_a_gpu_is_read_by_the_time_of_the_processor() -> None:
    text = "Name  CPU time  Calls  CPU total\nconv2d   10.5ms   1   12.5ms\n"
    assert parse_table("2_3_8_4_3_cpu_forward_0.txt", text).ms == 12.5
    zeros = TABLE.format(kernel=3, name="conv2d", us=0.0)
    assert parse_table("32_32_256_32_3_cpu_forward_1.txt", zeros).ms == pytest.approx(0.510882)


def test_the_device_of_tables_is_what_whoever_imports_them_says_and_never_a_word_of_their_name(tmp_path: Path) -> None:
    for folder, us in (("tx2", 115_000.0), ("p100", 8_300.0)):
        (tmp_path / folder).mkdir()
        for repeat in (1, 2):
            text = TABLE.format(kernel=7, name="conv2d", us=us)
            (tmp_path / folder / f"32_32_256_32_7_jetson_forward_{repeat}.txt").write_text(text, "utf-8")
    alone = read_tables(tmp_path)
    assert {row.source: row.ns / 1e6 for row in alone.rows()} == {
        "imported, p100": pytest.approx(8.3), "imported, tx2": pytest.approx(115)
    }  # fmt: skip
    assert alone.unnamed == ("p100", "tx2")
    named = read_tables(tmp_path, ("tx2=Jetson TX2", "p100=Tesla P100"))
    assert {row.source for row in named.rows()} == {"Jetson TX2", "Tesla P100"}
    assert named.unnamed == ()
    assert {row.source for row in read_tables(tmp_path, ("Jetson TX2",)).rows()} == {"Jetson TX2"}
    with pytest.raises(UsageError, match="names no device"):
        read_tables(tmp_path, ("tx2=",))
    with pytest.raises(UsageError, match="--import"):
        Kernels(import_device=("Jetson TX2",))


def test_tables_that_cannot_be_read_are_named_and_a_folder_without_any_is_refused(tables: Path, tmp_path: Path) -> None:
    (tables / "32_32_256_32_9_jetson_forward_1.txt").write_text(TABLE.format(kernel=7, name="conv2d", us=5), "utf-8")
    (tables / "notes.txt").write_text("nothing", encoding="utf-8")
    found = read_tables(tables)
    assert len(found.refused) == 2
    assert "differ in kernel_size" in found.refused[0]
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere", tables / "notes.txt"):
        with pytest.raises(UsageError, match="--import"):
            read_tables(path)


@given(st.text(max_size=300))
def test_any_text_is_a_table_or_refused_with_a_reason(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_table("2_3_8_4_3_cpu_forward_0.txt", text).ms > 0


def test_the_shapes_of_a_model_are_found_with_how_often_they_run() -> None:
    found = kernels_of(workloads.find("mobilenet-v1-c32"), 2, OPS)
    ops = {kernel.op for kernel in found}
    assert {"conv", "depthwise", "batch_norm", "linear", "optimizer"} == ops
    assert sum(kernel.count for kernel in found if kernel.op == "depthwise") == 13
    assert all(kernel.sizes["batch"] == 2 for kernel in found if kernel.op == "conv")


def test_a_model_without_the_asked_layers_is_refused_with_what_it_has() -> None:
    with pytest.raises(UsageError, match="'lenet' has no lstm") as refused:
        kernels_of(workloads.find("lenet"), 2, ("lstm",))
    assert "conv" in str(refused.value.hint)


def test_a_study_times_judges_draws_and_is_gone_on_with(tables: Path, tmp_path: Path) -> None:
    asked, told = replace(SMALL, import_=tables), list[str]()
    findings = answer_study(asked, tmp_path / "study", watch=_counting(told))
    names = {table.name: table for table in findings.tables}
    assert {"sweet-spots", "cliffs", "five-three", "ceilings", "bare-loop", "kernels"} <= set(names)
    assert {row[0] for row in names["five-three"].rows} == {HERE, "imported"}
    told_before = list(told)
    again = answer_study(asked, tmp_path / "study", watch=_counting(told))
    assert told == told_before, "nothing is timed twice"
    assert again.tables == findings.tables
    drawn = kernel_charts(findings.frames)
    assert {"roofline", "time-per-flop-conv", "time-per-flop-optimizer"} <= set(drawn)
    assert "A 5x5 and then a 3x3" in render(findings, drawn)


def test_a_kernel_that_does_not_fit_is_not_timed_and_said(tmp_path: Path) -> None:
    huge = replace(SMALL, ops=("conv",), kernel=(3,), batch=(1,), channels=(4096,), sizes=(8192,))
    findings = answer_study(huge, tmp_path)
    assert any("not timed" in note and "MB are free" in note for note in findings.notes)
    assert {table.name for table in findings.tables} == {"ceilings"}


@pytest.mark.parametrize(
    "options",
    [{"ops": "conv,gru"}, {"of": "lenet", "channels": "4"}, {"of": "lenet", "batch": "1,2"}, {"kernel": "2,3"},
     {"sizes": "0"}],
)  # fmt: skip
def test_options_that_contradict_or_do_not_exist_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Kernels(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_kernels_of_a_workload_from_the_command_line(stepscope_cli: CommandLine, tmp_path: Path) -> None:
    command = ("study", "kernels", "--of", "lenet", "--batch", "2", "--ops", "conv,linear", "--seconds", "0.001")
    done = stepscope_cli(*command, "--quick", "--threads", "1", "--out", "study")
    assert done.returncode == 0, done.stderr
    assert "Ceilings" in done.stdout
    assert np.all([(tmp_path / "study" / name).exists() for name in ("page.html", "findings.json", "figures")])


def test_parameters_that_are_frozen_are_not_updated() -> None:
    found = kernels_of(workloads.find("smollm2-135m-lora-128"), 1, ("optimizer",))
    assert found[0].sizes["parameters"] < 1_000_000


def _layers(model: nn.Module, batch: torch.Tensor) -> list[Kernel]:
    lenet = workloads.find("lenet")
    own = replace(lenet, build=lambda: model, example=lambda size: (batch,), loss=lambda made, x: made(x[0]).sum())
    return kernels_of(own, 2, OPS)


def test_calls_that_name_their_tensors_are_counted_as_others() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(input=x, weight=self.weight)

    (linear,) = [kernel for kernel in _layers(Named(), torch.ones(2, 4)) if kernel.op == "linear"]
    assert (linear.sizes["inputs"], linear.gradients) == (4, {(True, False): 1})


def test_only_the_gradients_that_a_step_takes_are_counted() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.frozen, self.last = nn.Linear(4, 5), nn.Linear(5, 6).requires_grad_(False), nn.Linear(6, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.last(torch.zeros(2, 6))
            return torch.as_tensor(self.last(self.frozen(self.first(x))))

    found = {kernel.sizes.get("inputs"): kernel for kernel in _layers(Layers(), torch.ones(2, 4))}
    counted = {
        inputs: [times_a_step(found[inputs], part) for part in (FORWARD, WEIGHT, INPUT, BOTH)] for inputs in (4, 5, 6)
    }
    assert counted == {4: [1, 1, 0, 0], 5: [1, 0, 1, 0], 6: [2, 0, 0, 1]}
    rows = _timed([found[4]], {FORWARD: 2e6, WEIGHT: 3e6, INPUT: 4e6, BOTH: 7e6, WHOLE: 8e6})
    assert [row[1:3] for row in _step_table(rows).rows] == [(FORWARD, 2.0), (WEIGHT, 3.0)]
    assert _most_expensive_op(rows) == ("linear", 5e6, 5e6)


def test_the_layers_of_an_lstm_above_the_first_take_a_gradient_of_their_input() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, num_layers=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.lstm(x)[0])

    found = {kernel.sizes["inputs"]: kernel for kernel in _layers(Layers(), torch.ones(5, 2, 3)) if kernel.op == "lstm"}
    assert [times_a_step(found[3], part) for part in (FORWARD, WEIGHT, BOTH)] == [1, 1, 0]
    assert [times_a_step(found[4], part) for part in (FORWARD, WEIGHT, BOTH)] == [2, 0, 2]


def test_causal_attention_is_timed_as_it_is_called() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(x)
            return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    (kernel,) = (found for found in _layers(Layers(), torch.ones(1, 2, 4, 8)) if found.op == "attention")
    assert kernel.sizes["causal"] == 1
    full = Kernel("attention", {name: size for name, size in kernel.sizes.items() if name != "causal"})
    called: list[bool] = []
    plain = functional.scaled_dot_product_attention

    def noted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        called.append(is_causal)
        return plain(q, k, v, is_causal=is_causal)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(functional, "scaled_dot_product_attention", noted)
        parts = timed_calls_of(kernel)
        assert parts[FORWARD].flops == timed_calls_of(full)[FORWARD].flops * 5 // 8
    assert called == [True, False]
    assert [times_a_step(kernel, part) for part in (FORWARD, INPUT, WHOLE)] == [1, 1, 1]


def _timed(kernels: list[Kernel], parts: dict[str, float]) -> list[KernelRate]:
    return [KernelRate(HERE, kernel, part, ns, ns, ns, 100, 10) for kernel in kernels for part, ns in parts.items()]


@pytest.mark.parametrize("others", [(8, 16, 32), (32,)])
def test_an_axis_is_drawn_with_the_others_at_their_centre(others: tuple[int, ...]) -> None:
    found = rates_frame(_timed(KernelAxes((1, 3, 5), (1, 4, 16), others, others, ()).of("conv"), {FORWARD: 5.0}))
    middle = others[len(others) // 2]
    drawn = {axis: _longest_lines(found.filter(axis=axis))["beside"].unique().to_list() for axis in ("batch", "kernel")}
    rest = f"channels {middle}, size {middle}"
    assert drawn == {"batch": [f"kernel 3, {rest}"], "kernel": [f"batch 4, {rest}"]}


def test_the_shares_of_the_roofline_are_of_the_time_in_which_every_part_runs_once() -> None:
    kernels = [Kernel("linear", {"batch": 1, "inputs": size, "outputs": 8}, count=size) for size in (1, 3)]
    rows = _timed(kernels, {FORWARD: 2.0, WEIGHT: 3.0, INPUT: 4.0, BOTH: 7.0, WHOLE: 8.0})
    points = _frames(rows, {"flops_per_s": 1e9, "bytes_per_s": 1e9})["roofline"]
    assert points.filter(part=WHOLE)["share"].to_list() == pytest.approx([0.25, 0.75])
    assert points.filter(pl.col("part") == FORWARD)["share"].sum() == pytest.approx(0.25)


def _visit(ns: float, half: float = 0.01) -> dict[str, Any]:
    bounds = {"low_ns": ns * (1 - half), "high_ns": ns * (1 + half), "least_ns": 0.9 * ns, "most_ns": 1.1 * ns}
    return {"parts": {FORWARD: {"ns": ns, **bounds, "flops": 1000, "bytes": 1000}}}


def test_a_burst_of_other_work_in_one_visit_of_a_kernel_is_no_cliff() -> None:
    small, large = (Kernel("conv", {"batch": n}, {"batch": n}) for n in (1, 2))
    calm = list(_rate_rows(small, [_visit(100), _visit(101), _visit(99)]))
    disturbed = list(_rate_rows(large, [_visit(800), _visit(100), _visit(101)]))
    assert (disturbed[0].ns, disturbed[0].low_ns, disturbed[0].high_ns) == (101, 99, 808)
    assert cliffs([*calm, *disturbed]) == []
    assert len(cliffs([*calm, *_rate_rows(large, [_visit(800), _visit(790), _visit(810)])])) == 1


def test_a_cliff_is_as_steep_as_its_limit_within_its_whole_interval() -> None:
    assert cliffs([_row(100, half=0.05, batch=1), _row(130, half=0.05, batch=2)]) == []


def test_visits_with_few_blocks_cover_all_of_them() -> None:
    visits = [_visit(100), _visit(100), _visit(100)]
    for visit in visits:
        visit["parts"][FORWARD] |= {"low_ns": None, "high_ns": None}
    (row,) = _rate_rows(Kernel("conv", {}), visits)
    assert [row.low_ns, row.high_ns] == pytest.approx([90, 110])


def test_an_operator_that_cannot_run_is_skipped_and_the_others_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed_calls(kernel: Kernel, device: str = "cpu") -> Any:
        parts = timed_calls_of(kernel, device)
        if kernel.op != "conv" or device == "meta":
            return parts

        def refuse() -> None:
            raise RuntimeError("could not create a primitive")

        return {name: replace(part, call=refuse) for name, part in parts.items()}

    monkeypatch.setattr("stepscope.experiments.kernels.measurements.timed_calls_of", timed_calls)
    findings = answer_study(SMALL, tmp_path / "study")
    assert sum("could not create a primitive" in note for note in findings.notes) == 4  # three kernels and their pair
    (kernels,) = (table for table in findings.tables if table.name == "kernels")
    assert {str(row[1]).split()[0] for row in kernels.rows} == {"batch_norm", "optimizer"}


def test_a_kernel_that_twice_ended_the_process_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(SMALL, ops=("optimizer",))
    first = asked.plan().points[1].id

    def write_attempts(count: int) -> None:
        (tmp_path / "attempt.json").write_text(json.dumps({"point": first, "count": count}), encoding="utf-8")

    write_attempts(1)
    findings = answer_study(asked, tmp_path)
    assert not any("ended 2 times" in note for note in findings.notes)
    assert not (tmp_path / "attempt.json").exists()
    (tmp_path / "cells" / f"{first}.json").unlink()
    write_attempts(2)
    assert any("ended 2 times" in note for note in answer_study(asked, tmp_path).notes)


def test_an_interrupted_kernel_is_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("stepscope.experiments.kernels.measurements.time_call", interrupt)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                answer_study(replace(SMALL, ops=("optimizer",)), tmp_path)
    assert not (tmp_path / "attempt.json").exists()


@pytest.mark.parametrize(("cores", "is_said"), [(0.1, False), (1.5, True)])
def test_background_load_over_the_study_is_said(
    cores: float, is_said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count()
    monkeypatch.setattr(
        "stepscope.experiments.kernels.measurements._core_seconds", lambda: (float(at := next(now)), at * cores)
    )
    findings = answer_study(replace(SMALL, ops=("optimizer",)), tmp_path)
    assert any("busy with other processes" in note for note in findings.notes) == is_said
    assert len(list((tmp_path / "cells").glob("optimizer-*.json"))) == 4 * VISITS


@pytest.mark.parametrize(("waited", "is_disturbed"), [(0.05, False), (0.4, True)])
def test_ceilings_that_other_load_disturbed_are_no_best_of_this_device(
    waited: float, is_disturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {**CEILINGS, "run_queue_share": waited}
    monkeypatch.setattr("stepscope.experiments.kernels.measurements.ceilings", lambda *asked, **how: limits)
    findings = build_findings(Evidence([], reached_ceilings(SMALL), {}, {}, {}), None, "a device")
    assert ("disturbed by other load" in findings.answer) == is_disturbed
    assert any("waited for a CPU core in 40 % of its time" in note for note in findings.notes) == is_disturbed


def test_a_study_goes_on_without_the_ceiling_of_the_memory_where_other_load_disturbed_its_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {**CEILINGS, "bandwidth": [{**row, "waited": 0.5} for row in CEILINGS["bandwidth"]]}
    monkeypatch.setattr("stepscope.experiments.kernels.measurements.ceilings", lambda *asked, **how: limits)
    findings = answer_study(replace(SMALL, ops=("conv",)), tmp_path)
    assert findings.answer.startswith("At its best this device did 2.2 GFLOP/s. ")
    assert any(note.startswith("the ceiling of the memory is not known") for note in findings.notes)
    (roofs,) = (table for table in findings.tables if table.name == "ceilings")
    assert [row[0] for row in roofs.rows] == ["arithmetic"]
    assert findings.frames["roofs"]["roof"].to_list() == ["compute"]
    for chart, _ in kernel_charts(findings.frames).values():
        assert chart(600).to_dict()
