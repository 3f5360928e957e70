"""A training with JAX: what its run says, and that it is left alone. The trainings are in `jax_trainings`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.patience import HANG_S

import stepscope
from stepscope.errors import UsageError
from stepscope.record.framework import Recorder, framework_of
from stepscope.record.jax.programs import BACKWARD, FORWARD, OTHER, parse_op_name, read_program
from stepscope.record.jax.rows import InstructionRun, read_trace, rows_of
from stepscope.record.ops.rows import StepSpan

ROOT = Path(__file__).parents[2]
BATCH, SMALL, HEAVY = 64, 64, 640  # as in jax_trainings
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")


def python(*words: str) -> str:
    """What a Python of its own prints, started in the root of the repository."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the trainings found, by name."""
    folder = tmp_path_factory.mktemp("jax")
    python("-m", "tests.record.jax_trainings", str(folder))
    trainings: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return trainings


@pytest.fixture(scope="module")
def run(found: dict[str, Any]) -> stepscope.Run:
    return stepscope.Run(found["profiled"]["run"])


def events(found: dict[str, Any], training: str) -> dict[str, dict[str, Any]]:
    """The events of the run of a training, the last of each kind."""
    return {event["kind"]: event for event in stepscope.Run(found[training]["run"]).events}


# the seam

if TYPE_CHECKING:
    from stepscope.record.jax.recorder import JaxRecorder
    from stepscope.record.session import Session
    from stepscope.record.torch_recorder import TorchRecorder

    def recorders(session: Session) -> tuple[Recorder, Recorder]:
        """Both keep to the protocol, and the session to its own: what the type checker reads."""
        return TorchRecorder(session), JaxRecorder(session)


def test_session_plan_sampler_and_writer_need_no_framework() -> None:
    modules = ("session", "profile", "plan", "settings", "run_facts", "framework", "sampler.process", "sampler.loop")
    imports = ", ".join(["stepscope.runfolder.writer", *(f"stepscope.record.{name}" for name in modules)])
    script = f"import sys, tests.no_torch, {imports}; print(*sorted({{'torch', 'jax', 'polars'}} & set(sys.modules)))"
    assert python("-c", script).strip() == ""


def test_what_is_given_tells_the_framework() -> None:
    of_jax = type("Array", (), {"__module__": "jaxlib._jax"})
    of_flax = type("Model", (type("Module", (), {"__module__": "flax.linen.module"}),), {"__module__": "mine"})
    assert framework_of({"layer": [of_jax()]}) == "jax"
    assert framework_of(of_flax()) == "jax"
    assert framework_of([torch.nn.Linear(2, 2)]) == "torch"
    assert framework_of({"w": torch.zeros(2)}) == "torch"
    assert framework_of(None) == "torch"  # both may be imported here


def test_parameters_that_are_numpy_arrays_are_those_of_jax_where_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parameters = {"layer": {"w": np.zeros(2)}}
    monkeypatch.setitem(sys.modules, "jax", sys)
    assert framework_of(parameters) == "jax"
    assert framework_of([np.zeros(2), torch.nn.Linear(2, 2)]) == "torch"
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UsageError) as refused:
        stepscope.profile(parameters, out=tmp_path)
    assert "framework='jax'" in str(refused.value.hint)


def test_an_unknown_framework_names_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused, stepscope.profile(out=tmp_path, framework="numpy"):
        pass
    assert "torch, jax" in str(refused.value.hint)
    assert list(tmp_path.iterdir()) == []


# what names tell


@pytest.mark.parametrize(
    ("op_name", "layer", "phase"),
    [
        ("jit(step)/jvp(encoder)/attention/dot_general", ("encoder", "attention"), FORWARD),
        ("jit(step)/transpose(jvp(encoder))/attention/dot_general", ("encoder", "attention"), BACKWARD),
        ("jit(step)/jvp(layer)/jit(relu)/max", ("layer",), FORWARD),
        ("jit(step)/jvp()/reduce_sum", (), FORWARD),
        ("jit(step)/jvp(rnn)/while/body/closed_call/cell/tanh", ("rnn", "cell"), FORWARD),
        ("jit(step)/jvp(batched)/vmap()/sin", ("batched",), FORWARD),
        ("jit(step)/transpose(jvp(a))/b/jvp(a)/b/checkpoint/rematted_computation/c/tanh", ("a", "b", "c"), BACKWARD),
        ("jit(step)/outer/jvp(inner)/add", ("outer", "inner"), FORWARD),
        ("jit(step)/augment/mul", ("augment",), OTHER),
        ("jit(step)/sub", None, OTHER),
        ("jit(step)/transpose(jvp(a))/add_any;jit(step)/transpose(jvp())/mul", ("a",), BACKWARD),
        ("params['w']", None, OTHER),
        ("", None, OTHER),
    ],
)
def test_the_name_of_an_instruction_tells_layer_and_phase(op_name: str, layer: Any, phase: str) -> None:
    place = parse_op_name(op_name)
    assert (place.layer, place.phase) == (layer, phase)


@pytest.mark.parametrize(
    ("op_name", "phase"),
    [
        ("jit(step)/vmap(jvp(first))/dot_general", FORWARD),
        ("jit(step)/vmap(transpose(jvp(first)))/dot_general", BACKWARD),
        ("jit(step)/vmap(vmap(transpose(jvp(first))))/dot_general", BACKWARD),
    ],
)
def test_gradients_of_each_sample_have_their_phases_within_vmap(op_name: str, phase: str) -> None:
    assert parse_op_name(op_name).phase == phase
    assert parse_op_name(op_name).layer == ("first",)


def test_a_loss_that_was_deleted_is_waited_for_as_if_none_was_given() -> None:
    jax = pytest.importorskip("jax")
    from stepscope.record.jax.recorder import JaxRecorder

    loss = jax.numpy.ones(()) + 1
    loss.delete()
    recorder = JaxRecorder.__new__(JaxRecorder)
    recorder.wait_for_step(loss)
    recorder.wait_for_step({"loss": loss, "other": jax.numpy.ones(3)})
    assert recorder.loss_value(loss) is None


def test_layers_of_a_function_that_is_gone_before_the_recording_ends_are_known(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")

    def train(scope: Any) -> None:
        def loss_of(w: Any) -> Any:
            with jax.named_scope("only"):
                return jax.numpy.mean((jax.numpy.ones((8, 8)) @ w) ** 2)

        step = jax.jit(lambda w: w - 0.01 * jax.grad(loss_of)(w))
        w = jax.numpy.ones((8, 8))
        for _ in range(3):
            w = step(w)
            scope.step()

    with stepscope.profile(out=tmp_path, framework="jax") as scope:
        train(scope)
    assert "only" in stepscope.Run(scope.path).modules()["module"].to_list()


@needs_jax
def test_the_gradient_of_a_convolution_is_backward_where_xla_has_fused_it_and_kept_no_name() -> None:
    script = """
import jax, jax.numpy as jnp
from stepscope.record.jax.programs import read_program
def loss(w, x):
    return jnp.sum(jax.lax.conv_general_dilated(x, w, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')) ** 2)
shapes = (jnp.ones((3, 3, 16, 16)), jnp.ones((8, 16, 16, 16)))
compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*shapes).compile()
(module,) = compiled.runtime_executable().hlo_modules()
flops = {}
for op in read_program(module.as_serialized_hlo_module_proto()).ops.values():
    flops[op.phase] = flops.get(op.phase, 0) + (op.flops or 0)
print(flops['forward'], flops['backward'])
"""
    forward, backward = map(int, python("-c", script).split())
    assert (forward, backward) == (2 * 8 * 16 * 16 * 16 * 9 * 16, 2 * forward)


def test_a_program_that_is_cut_off_is_refused_and_not_misread() -> None:
    assert read_program(b"").ops == {}
    with pytest.raises((ValueError, IndexError)):
        read_program(b"\x0b\x80")


class Event:
    """As the trace's."""

    def __init__(self, name: str, t0: float, length: float = 0.0, **stats: Any) -> None:
        self.name, self.start_ns, self.duration_ns, self.stats = name, t0, length, list(stats.items())


def of_program(name: str, t0: float, length: float) -> Event:
    return Event(name, t0, length, hlo_op=name, hlo_module="jit_step", program_id=1)


def test_an_instruction_lasts_until_the_last_thread_that_worked_on_it() -> None:
    listener = "ThreadpoolListener::"
    main = [
        of_program("dot", 0, 100), Event(f"{listener}Record", 10, _p=7),
        of_program("add", 100, 50),
    ]  # fmt: skip
    other = [
        Event(f"{listener}StartRegion", 200, _c=7), Event("ThunkExecutor::Execute", 300, 900),
        of_program("late", 310, 80), Event(f"{listener}StopRegion", 1_300),
    ]  # fmt: skip
    trace = read_trace([main, other])
    assert [(call.instruction, call.work) for call in trace.calls] == [
        ("dot", [(0, 100), (200, 300)]),
        ("add", [(100, 150)]),
        ("late", [(310, 390)]),
    ]


def test_threads_that_work_at_once_share_the_wall_time_and_a_queue_takes_none() -> None:
    program = ("jit_step", 1)
    trace = read_trace([])
    trace.calls = [
        InstructionRun(program, "dot", [(0, 100), (50, 100), (900, 1_000)]),  # two threads, then a late third
        InstructionRun(program, "add", [(50, 100)]),
        InstructionRun(program, "tanh", [(200, 300)]),
    ]
    rows = rows_of(trace, 1_000.0, [StepSpan(4, 1_000, 2_000, 8)], {})
    columns = rows.part.columns
    assert columns["self_ns"].tolist() == [50 + 33 + 100, 16, 100]
    assert columns["t0_ns"].tolist() == [1_000, 1_050, 1_200]
    assert columns["t1_ns"].tolist() == [2_000, 1_100, 1_300]
    assert len({columns["thread"][0], columns["thread"][1]}) == 2  # they overlap
    assert columns["step"].tolist() == [4, 4, 4]


# a training


@needs_jax
def test_a_training_is_recorded_where_torch_cannot_be_imported(run: stepscope.Run, found: dict[str, Any]) -> None:
    assert (run.status, run.framework) == ("ok", "jax")
    assert run.meta["versions"]["jax"]
    assert "torch" not in run.meta["versions"]
    assert run.steps["step"].to_list() == list(range(40))
    assert run.steps["samples"].unique().to_list() == [BATCH]
    assert run.steps["loss"].to_list() == pytest.approx(found["profiled"]["losses"])
    assert run.meta["recorder"]["recorded_steps"] >= 6
    assert [event["kind"] for event in run.events if event["source"] == "session"] == []


@needs_jax
def test_it_computes_the_same_to_the_bit(found: dict[str, Any]) -> None:
    assert found["profiled"]["hash"] == found["unprofiled"]["hash"]
    assert found["profiled"]["losses"] == found["unprofiled"]["losses"]


@needs_jax
def test_products_are_counted_by_layer_and_phase(run: stepscope.Run) -> None:
    counted = (
        run.ops.filter(pl.col("flops").is_not_null())
        .group_by("step", pl.col("module").cast(pl.String), pl.col("phase").cast(pl.String))
        .agg(pl.col("flops").sum())
    )
    by_place = {(module, phase): set(part["flops"]) for (module, phase), part in counted.group_by("module", "phase")}
    heavy, small = 2 * BATCH * SMALL * HEAVY, 2 * BATCH * SMALL * SMALL
    assert by_place["heavy.in", "forward"] == by_place["heavy.out", "forward"] == {heavy}
    assert by_place["heavy.in", "backward"] == by_place["heavy.out", "backward"] == {2 * heavy}
    assert (by_place["first", "forward"], by_place["first", "backward"]) == ({small}, {small})  # no gradient of x
    assert {phase for _, phase in by_place} == {"forward", "backward"}


@needs_jax
def test_a_layer_with_ten_times_the_work_takes_most_of_the_time(run: stepscope.Run) -> None:
    by_step = run.self_times.group_by("module", "phase", "step").agg(pl.col("self_ns").sum())
    own = by_step.group_by("module", "phase").agg(pl.col("self_ns").median())  # one step may have waited for a core
    times = {(row["module"], row["phase"]): row["self_ns"] for row in own.iter_rows(named=True)}
    for phase in ("forward", "backward"):
        heavy = times["heavy.in", phase] + times["heavy.out", phase]
        assert heavy > times["first", phase] + times["head", phase]
    modules = {row["module"]: row for row in run.modules().iter_rows(named=True)}
    assert modules["heavy"]["tree_forward_ns"] >= modules["heavy.in"]["forward_ns"]
    assert modules["heavy.in"]["optimizer_ns"] > 0


@needs_jax
def test_layers_are_a_tree_with_their_parameters(run: stepscope.Run) -> None:
    rows = {row["module"]: row for row in run.model.iter_rows(named=True)}
    sizes = {
        "first": SMALL * SMALL + SMALL,
        "heavy.in": SMALL * HEAVY + HEAVY,
        "heavy.out": HEAVY * SMALL + SMALL,
        "head": SMALL * 10 + 10,
    }
    sizes["heavy"] = sizes["heavy.in"] + sizes["heavy.out"]
    sizes[""] = sizes["first"] + sizes["heavy"] + sizes["head"]
    assert {name: row["parameters"] for name, row in rows.items()} == sizes
    assert rows["heavy.in"]["parent"] == "heavy"
    assert rows["heavy"]["bytes"] == 4 * sizes["heavy"]


@needs_jax
def test_self_times_fit_into_their_steps_and_spans(run: stepscope.Run) -> None:
    lengths = run.steps.select(pl.col("step").cast(pl.UInt32), length=pl.col("t1_ns") - pl.col("t0_ns"))
    sums = run.ops.group_by("step").agg(pl.col("self_ns").sum()).join(lengths, on="step")
    assert (sums["self_ns"] <= sums["length"]).all()
    assert (sums["self_ns"] > 0).all()
    assert (run.ops["self_ns"] <= run.ops["t1_ns"] - run.ops["t0_ns"]).all()
    assert run.damaged == []


@needs_jax
def test_a_step_ends_when_its_work_is_done(found: dict[str, Any]) -> None:
    assert found["waits"]["ready"] == [True, True]


@needs_jax
def test_reports_page_comparison_and_exports_take_such_a_run(
    run: stepscope.Run, found: dict[str, Any], tmp_path: Path
) -> None:
    text = stepscope.text(run.path)
    assert "heavy.in" in text
    assert "stepscope tune" not in text
    assert "heavy.out" in stepscope.page(run.path, tmp_path / "page.html").read_text(encoding="utf-8")
    for form in ("perfetto", "chrome", "csv", "speedscope", "json"):
        assert Path(stepscope.export(run.path, form, tmp_path / form)).exists()
    comparison = stepscope.compare([run.path, found["own_trace"]["run"]])
    assert run.id in stepscope.text(comparison, verbose=True)
    assert "heavy.in" in stepscope.page(comparison, tmp_path / "compare.html").read_text(encoding="utf-8")


@needs_jax
def test_waiting_for_xla_is_no_lock_and_what_is_not_measured_is_said(run: stepscope.Run) -> None:
    assert all(cause.bound not in ("lock", "idle") for cause in run.verdict().causes)
    missing = {entry.what: entry.why for entry in run.not_measured()}
    assert "not recorded with jax" in missing["memory by layer"]


@needs_jax
def test_the_example_is_that_of_the_guide_and_runs_without_torch(tmp_path: Path) -> None:
    example = ROOT / "examples" / "train_jax.py"
    guide = (ROOT / "docs" / "guide-jax.md").read_text(encoding="utf-8")
    assert example.read_text(encoding="utf-8").partition("\n\n")[2] in guide
    script = f"import os, runpy, tests.no_torch; os.chdir({str(tmp_path)!r}); runpy.run_path({str(example)!r})"
    python("-c", script)
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"first", "second", "third"} <= set(stepscope.Run(folder).model["module"])


# what could go wrong


@needs_jax
def test_a_step_that_compiles_anew_is_named(found: dict[str, Any]) -> None:
    assert events(found, "new_shapes")["compiled-anew"]["step"] == 6


@needs_jax
def test_what_an_evaluation_compiles_is_no_step_s(found: dict[str, Any]) -> None:
    assert found["evaluates"]["compile_s"] > 0
    assert "compiled-anew" not in events(found, "evaluates")


@needs_jax
def test_a_trace_of_the_training_has_the_profiler_for_itself(found: dict[str, Any]) -> None:
    assert found["own_trace"]["traced"] == 1
    assert "a trace of its own" in events(found, "own_trace")["recording-stopped"]["message"]
    run = stepscope.Run(found["own_trace"]["run"])
    assert run.status == "ok"
    assert len(run.steps) == 8
    assert 0 < run.ops["step"].max() < 5  # type: ignore[operator]


@needs_jax
@pytest.mark.parametrize(
    "name", ["wait_for_step", "before_step", "step_ends", "_flush_window", "_open_window", "model_rows"]
)
def test_a_fault_of_ours_leaves_the_training_alone(found: dict[str, Any], name: str) -> None:
    training = found[f"fault in {name}"]
    assert training["hash"] == found["unprofiled"]["hash"]
    kinds = events(found, f"fault in {name}")
    assert {"profiling-failed", "ops-lost", "write-failed"} & set(kinds)
    assert "on purpose" in json.dumps(kinds)
    assert stepscope.Run(training["run"]).status == "ok"


@needs_jax
@pytest.mark.parametrize(
    ("options", "message"), [("steps='optimizer'", "where a step ends"), ("memory='all'", "allocations are not")]
)
def test_what_jax_cannot_give_is_refused_before_the_loop(options: str, message: str, tmp_path: Path) -> None:
    script = f"""
import stepscope
try:
    stepscope.profile(out={str(tmp_path)!r}, framework='jax', {options}).__enter__()
except stepscope.errors.UsageError as error:
    print(error)
"""
    assert message in python("-c", script)
    assert list(tmp_path.iterdir()) == []
