"""The limits of a run's numbers: what was not measured and why, and the profiling overhead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.channels import growth_windows, series_of, shortest_window_ns
from stepscope.analysis.energy.power_model import power_model_gaps
from stepscope.analysis.energy.power_sources import reversed_shunts
from stepscope.analysis.estimate import mean_over_time
from stepscope.analysis.metrics import Measured, metric_frame
from stepscope.analysis.process_scopes import (
    ALL,
    CHILDREN,
    RANK,
    WATCHED,
    Process,
    has_several_processes,
    training_processes,
    watched_pid_stated,
)
from stepscope.analysis.result_cache import cached_per_run
from stepscope.analysis.time.operators import CPU
from stepscope.analysis.time.ranks import KILLED
from stepscope.analysis.time.steps import (
    FEW,
    are_steps_whole,
    layer_timed_steps,
    only_warmup_profiled,
    profiled_parts,
    profiled_steps,
    span_ns,
    steps_after_warmup,
    timed_steps,
)
from stepscope.arrays import Floats
from stepscope.files import CHANGED, MENDED
from stepscope.quantities import POWER_SENSORS
from stepscope.runfolder import RunReader
from stepscope.runfolder.checksums import GONE
from stepscope.runfolder.schema import calls_in_other_formats
from stepscope.units import percent, plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run
from stepscope.units import duration

_POWER = ("power", "energy")
_OF_A_BOARD = re.compile(r"jetson|rpi")  # that another machine lacks them is no news
_PLAIN_NAMES = {"jetson_memory": "GPU's part of the memory"}  # of sensors whose name does not tell what they read
_ENABLE = (
    "stepscope doctor says how to open a sensor; a plug or meter works anywhere (--plug, --meter-command, --meter-csv)"
)
_ESTIMATE = "; --power-model cpu=2W..15W estimates"
_LOSSES = ("lost", "gap", "dropped", "stopped", "jump", "damaged", "hung", "stale", "not-read")


IN_RUN, ENERGY, MACHINE, LOST = "in this run", "energy", "not on this machine", "lost or damaged"
GROUPS = (IN_RUN, ENERGY, MACHINE, LOST)
_WITHOUT_LAYERS = {  # events that say so, and what helps
    "no-module-calls": "call layer(x) instead of layer.forward(x)",
    "compiled-calls": "run once without torch.compile",
    "no-named-scopes": "put each layer into `with jax.named_scope('layer'):`",
}


@dataclass(frozen=True)
class NotMeasured:
    """One thing that is missing, why, and what would change it (null where nothing is known to).

    `group` is one of `GROUPS`; `detail` is what only a second look needs: where was looked, which sensors.
    """

    what: str
    why: str
    remedy: str | None = None
    group: str = IN_RUN
    detail: str = ""


@cached_per_run
def not_measured(run: Run) -> list[NotMeasured]:
    """Everything that is missing from a run, the most general first."""
    gaps = [
        *_step_gaps(run),
        *_operator_gaps(run),
        *_format_gaps(run),
        *_memory_gaps(run),
        *_overhead_gaps(run),
        *_sensor_gaps(run),
        *_dropped_data_gaps(run),
        *_damaged_files(run),
        *_losses_by_kind(run),
    ]
    return [*gaps, *_rank_gaps(run)]


def _rank_gaps(run: Run) -> Iterator[NotMeasured]:
    """Yield what is missing of the other processes of a distributed training, or cannot be compared."""
    for note in run.side_by_side.notes:
        yield NotMeasured("ranks", note)
    if not run.side_by_side.endings and run.status == "interrupted" and not run.meta.get("reason"):
        yield NotMeasured("why the training ended", KILLED)
    if has_several_processes(run) and run.channels:
        yield from _process_metric_gaps(run)


def _process_metric_gaps(run: Run) -> Iterator[NotMeasured]:
    """Memory and CPU utilisation that is not known of a training process, or of all processes together."""
    metrics = run.metrics().filter(pl.col("value").is_not_null())
    for metric, what in (("peak_memory", "memory"), ("process_cpu_utilisation", "CPU utilisation")):
        scopes = set(metrics.filter(pl.col("metric") == metric)["scope"])
        if ALL not in scopes:
            yield NotMeasured(f"{what} of all processes", _why_no_sum(run, metric))
        whys: dict[str, list[str]] = {}
        for process in training_processes(run):
            if process.scope not in scopes:
                whys.setdefault(_reason_metric_unknown(run, process, metric), []).append(
                    process.scope.removeprefix(RANK)
                )
        for why, ranks in whys.items():
            yield NotMeasured(f"{what} of {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}", why)


def _why_no_sum(run: Run, metric: str) -> str:
    if metric == "process_cpu_utilisation" and span_ns(run) is None:
        return "no step was made after the warm-up"
    scopes = {
        channel.get("scope") for channel in run.channels if channel.get("quantity") in ("rss", "process_cpu_time")
    }
    absent = [name for scope, name in ((WATCHED, "the launcher"), (CHILDREN, "child processes")) if scope not in scopes]
    return f"{' and '.join(absent)} could not be read" if absent else "too few readings were taken of all of them"


def _reason_metric_unknown(run: Run, process: Process, metric: str) -> str:
    if any(channel.get("scope") == process.sampled_as for channel in run.channels):
        short = metric == "process_cpu_utilisation" and process.span_ns is None
        return "no step was made after the warm-up" if short else "too few readings were taken while it trained"
    if watched_pid_stated(run):
        return "the process had ended, or could not be read, when the sampler looked for it"
    return "this run is from before training processes were sampled each: it has the launcher and the sum"


def _step_gaps(run: RunReader) -> Iterator[NotMeasured]:
    count = len(run.steps)
    if count == 0:
        parts = [str(event.get("message", "")) for event in run.events if event.get("kind") == "no-steps"]
        yield NotMeasured("steps", parts[-1] if parts else "the run holds no training step")
    elif steps_after_warmup(run).is_empty():
        which = "the only step is" if count == 1 else f"all {count} steps are"
        why = f"{which} warm-up (the first {run.warmup_steps} are excluded)"
        yield NotMeasured("step times", why, f"train for at least {run.warmup_steps + FEW} steps")
    for event in run.events:
        if event.get("kind") in ("steps-uncertain", "steps-are-rounds"):
            remedy = "give --updates-per-step, or call scope.step() of stepscope.profile where a step ends"
            yield NotMeasured("what a step is", str(event.get("message", "")), remedy)
    lost = run.meta.get("steps_lost")
    if lost:
        yield NotMeasured(plural(lost, "step"), "their times could not be written", group=LOST)


def _operator_gaps(run: Run) -> Iterator[NotMeasured]:
    table = run.self_times
    within = [str(event.get("message", "")) for event in run.events if event.get("kind") == "steps-end-in-backward"]
    remedy = "let the optimizers step after backward() to see layers" if within else None
    if table.is_empty():
        steady, count = len(profiled_steps(run)), len(run.steps)
        why = "no part of ops/ could be read" if steady else "no step after the warm-up was profiled"
        adaptive = (run.meta.get("recorder") or {}).get("mode") == "adaptive"
        if 0 < count < run.warmup_steps and adaptive and not within:
            why = f"the run has {plural(count, 'step')}, and profiling begins with the third"
            remedy = f"train for at least {run.warmup_steps + FEW} steps"
        yield NotMeasured("operators and modules", within[0] if within else why, remedy)
        return
    step_count = table["step"].n_unique()
    unseen = [event for event in run.events if event.get("kind") in _WITHOUT_LAYERS]
    for event in unseen:
        yield NotMeasured("layers", str(event.get("message", "")), _WITHOUT_LAYERS[str(event["kind"])])
    yield from _compiled_region_gaps(run)
    phases = set(table["phase"])
    if not unseen and are_steps_whole(run) and "backward" in phases and "forward" not in phases:
        why = "no call of a module was seen: the model is called in another thread than the one that updates it"
        yield NotMeasured("layers in forward", why, "call the model in the thread that updates it")
    if only_warmup_profiled(run):
        why = "only a step of the warm-up was profiled: it is shown, and is slower than those after it, in other shares"
        why, remedy = (within[0], remedy) if within else (why, "train for some steps more")
        yield NotMeasured("layers and operators after the warm-up", why, remedy)
    elif not are_steps_whole(run):
        yield NotMeasured("whole steps", _partial_profiling_reason(run))
    elif step_count < FEW:
        steps = plural(step_count, "profiled step")
        why = f"only {steps} after the warm-up, {FEW} are needed: one unusual step can sway the shares"
        yield NotMeasured("intervals of modules and operators", why, "run longer, or with --record all")
    written = set(table["step"].unique())
    missing = [step for step in profiled_steps(run)["step"] if step not in written]
    if missing:
        yield NotMeasured(
            f"operators of {plural(len(missing), 'profiled step')}", "they are not in any readable part of ops/"
        )
    others = (run.meta.get("recorder") or {}).get("other_shapes")
    if others:
        why = f"{plural(others, 'profiled step')} had inputs of other shapes than the FLOPs and bytes are of"
        yield NotMeasured("FLOPs of inputs of all shapes", why, "inputs padded to one length have them")
    if table["flops"].null_count() == len(table):
        why = "no profiled step recorded the shapes of its inputs, or no operator has a count"
        yield NotMeasured("FLOPs", why, "run longer, or with --record all")
    stated = any(series.scope.startswith("gpu") for series in series_of(run, "utilisation"))
    if bool((table["device"] == CPU).all()) and not stated:
        yield NotMeasured("accelerator utilisation", "no kernel ran on an accelerator")


def _format_gaps(run: RunReader) -> Iterator[NotMeasured]:
    others = calls_in_other_formats(run.meta)
    if others and run.device.get("ceilings"):
        names = sorted({name for name, _ in others})
        layers = sorted({module for _, module in others if module is not None})
        within = f" in {plural(len(layers), 'layer')}" if layers else ""
        why = "they compute in another number format than most FLOPs, of which the ceilings are"
        yield NotMeasured(f"share of the attainable of {', '.join(names)}{within}", why, detail=", ".join(layers))


def _compiled_region_gaps(run: Run) -> Iterator[NotMeasured]:
    """Yield the modules whose calls are not seen since they lie in compiled or scripted code."""
    spent = run.meta.get("compile_s")
    for region, remedy in (("compiled", "run once without torch.compile"), ("scripted", "run once without scripting")):
        inside = run.model.filter((pl.col("region") == region) & pl.col("module").is_not_null())["module"].n_unique()
        if not inside:
            continue
        took = f"; compiling took {spent:.3g} s" if region == "compiled" and isinstance(spent, float) else ""
        why = f"they run inside {region} code, whose time is that of the module that was {region}{took}"
        yield NotMeasured(f"forward and backward of {plural(inside, 'module')}", why, f"{remedy} to see them")


def _partial_profiling_reason(run: Run) -> str:
    part = profiled_steps(run)
    whole = run.steps.join(part.select("step"), on="step", how="semi")
    share = percent(float(part["length_ns"].sum() / (whole["t1_ns"] - whole["t0_ns"]).sum()), 2)
    parts = profiled_parts(run).join(part.select("step"), on="step", how="semi")
    names = ", ".join(parts["part"].unique(maintain_order=True))
    return (
        f"a step is too large to be profiled whole: the times and shares of layers, operators and phases are of parts "
        f"of it, {share} of its time ({names}); parts of phases do not tell how phases compare"
    )


def _memory_gaps(run: RunReader) -> Iterator[NotMeasured]:
    """A run that says nothing of a choice is older than it, and nobody would miss it there."""
    if run.framework != "torch":
        why = f"allocations are not recorded with {run.framework}: the process's memory is sampled"
        yield NotMeasured("memory by layer", why)
        return
    chosen = (run.meta.get("recorder") or {}).get("memory")
    if chosen is not None and run.memory_events.is_empty() and run.computed_memory_events.is_empty():
        why = {
            "off": "it was switched off, or looking at it failed",
            "auto": "the run is too short to profile allocations within its budget",
        }.get(str(chosen), "no step was profiled")
        yield NotMeasured("memory by layer", why, "--record-memory all")


def _overhead_gaps(run: Run) -> Iterator[NotMeasured]:
    handled: set[str] = set()
    for row in run.overhead().filter(pl.col("value").is_null()).iter_rows(named=True):
        if row["note"] not in handled:
            what = "sampler overhead" if row["scope"] == "sampler" else "profiling overhead"
            yield NotMeasured(what, row["note"])
        handled.add(row["note"])


def _sensor_gaps(run: Run) -> Iterator[NotMeasured]:
    if run.is_part:
        why = "the machine's sensors are sampled once, for all processes"
        yield NotMeasured("utilisation, memory and energy", why, f"stepscope report {run.path.parent.parent}")
        return
    if not run.channels:
        yield NotMeasured("utilisation and memory", "nothing was sampled in this run")
    absent = _missing_sensors(run)
    meters = [entry for entry in absent if POWER_SENSORS.search(str(entry.get("sensor")))]
    yield from _energy_gaps(run, meters)
    read = {channel.get("quantity") for channel in run.channels}
    for entry in absent:
        absent_here, sensor = entry.get("reason") == "absent", str(entry.get("sensor"))
        expected = entry not in meters and not _OF_A_BOARD.match(sensor)
        elsewhere = sensor.removeprefix("hwmon_") in read  # a machine without zones may have a GPU that tells its heat
        if not absent_here or (expected and not elsewhere):
            yield _sensor_gap(entry, absent_here, ENERGY if entry in meters else MACHINE if absent_here else IN_RUN)


def _sensor_gap(entry: dict[str, Any], absent: bool, group: str) -> NotMeasured:
    """A sensor that gave nothing; of one that is not there, where was looked is a detail."""
    what, remedy = _PLAIN_NAMES.get(sensor := str(entry.get("sensor", "a sensor")), sensor), entry.get("remedy")
    if absent and entry.get("detail"):
        return NotMeasured(what, "this machine has no such sensor", remedy, group, str(entry["detail"]))
    return NotMeasured(what, _stated_reason(entry), remedy, group)


def _energy_gaps(run: Run, meters: list[dict[str, Any]]) -> Iterator[NotMeasured]:
    """Return why there is no energy, or no total of it: what was tried, and what would enable one."""
    for why in power_model_gaps(run):
        remedy = "--power-model cpu=2W..15W, with the CPU or GPU that is sampled"
        yield NotMeasured("estimated energy", why, remedy, ENERGY)
    for backwards in reversed_shunts(run):
        why = "its power is below 0: its shunt is the other way round"
        yield NotMeasured(f"energy of {backwards}", why, "swap the two wires of its shunt", ENERGY)
    measured = [line for line in run.rails.lines if not line.estimated]
    if measured:
        for why in run.rails.notes if run.rails.total is None else ():
            remedy = "a meter or plug beside it measures the whole"
            yield NotMeasured("energy of the whole board", why, remedy, ENERGY)
        return
    if any(channel.get("quantity") in _POWER and channel.get("kind") != "estimate" for channel in run.channels):
        yield NotMeasured(
            "energy", "a power sensor was found and gave no two good readings", "stepscope doctor", ENERGY
        )
        return
    absent = [str(entry.get("sensor")) for entry in meters if entry.get("reason") == "absent"]
    # What is absent may be bought or plugged in; what is there and closed can be opened now.
    closed = [entry for entry in meters if entry.get("reason") != "absent"]
    remedies = [str(entry["remedy"]) for entry in closed if entry.get("remedy")]
    enable = _ENABLE if run.rails.lines else f"{_ENABLE}{_ESTIMATE}"  # lines that are left here are estimates
    text = "; ".join(["no sensor of this run measures power", *_unreadable_sensors(closed), *_absent_sensors(absent)])
    there = f"looked for and not found: {', '.join(absent)}" if absent else ""
    yield NotMeasured("energy", text, "; or ".join([*remedies[:1], enable]), ENERGY, there)


def _unreadable_sensors(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Return what is there and cannot be read, by name: rapl (denied)."""
    for entry in entries:
        yield f"{entry.get('sensor')} ({entry.get('reason')})"


def _absent_sensors(absent: list[str]) -> Iterator[str]:
    if absent:
        yield f"{plural(len(absent), 'kind')} of power sensor {'is' if len(absent) == 1 else 'are'} not there"


def _missing_sensors(run: RunReader) -> list[dict[str, Any]]:
    """Sensors that gave nothing, as the sampler wrote them: sensor, reason, detail, remedy."""
    return [entry for entry in run.sampling.get("missing") or [] if isinstance(entry, dict)]


def _stated_reason(entry: dict[str, Any]) -> str:
    stated = [entry.get("reason"), entry.get("detail")]
    return ": ".join(str(part) for part in stated if part) or "no reason stated"


def _damaged_files(run: RunReader) -> Iterator[NotMeasured]:
    for name in run.damaged_files():
        file, _, what = name.partition(": ")
        if what == MENDED:
            yield NotMeasured(file, f"{MENDED}: nothing is lost, but what it lies on may not be sound", group=LOST)
        elif what == GONE:
            yield NotMeasured(file, "it was written and is gone: what is shown may differ for it", group=LOST)
        elif what == CHANGED:
            yield NotMeasured(file, f"it is {CHANGED}, by damage or by hand: it may be wrong", group=LOST)
        else:
            yield NotMeasured(name, "the file is damaged and was excluded", group=LOST)


def _dropped_data_gaps(run: Run) -> Iterator[NotMeasured]:
    """Yield what the run gave up to keep to its room on the disk."""
    if sentences := list(thinning_sentences(run)):
        yield NotMeasured("all of a long run", "; ".join(sentences), "a larger --max-disk keeps more")


def _losses_by_kind(run: RunReader) -> Iterator[NotMeasured]:
    """One line a kind of loss, with how often it happened."""
    losses: dict[str, list[str]] = {}
    for event in run.events:
        kind = str(event.get("kind", ""))
        if any(word in kind for word in _LOSSES):
            losses.setdefault(kind, []).append(str(event.get("message", "")))
    for kind, messages in losses.items():
        times = f" ({len(messages)} times)" if len(messages) > 1 else ""
        yield NotMeasured(kind, f"{messages[0]}{times}", group=LOST)


# Compared are the few steps on either side of each change between the two, so that a machine that grows slower (heat)
# does not pass for overhead; changes in both directions count alike, which cancels what drift is left.

_NEAR = 10  # steps on either side of a change
_MOST_CHANGES = 400
_RESAMPLES = 1000
_FEW_STEPS = 3  # on each side of all changes together
_FEWEST = 20  # steps after the warm-up: of fewer, profiled ones are a large part, and no run is so short for long
_MOST = 0.5  # of the run; a larger overhead is one of a run of a moment


def overhead(run: Run) -> pl.DataFrame:
    """Cost of recording a step (ns, and as a share of an unprofiled one), of recording over the whole run, of sampling.

    Columns as `metrics`; where there is nothing to compare with, value is null and `note` says why.
    """
    return metric_frame([*_profiling_overhead_rows(run), *_sampler_overhead_rows(run)])


@dataclass(frozen=True)
class _ProfilingSwitch:
    """Step times, ns, on either side of a change between profiled and unprofiled steps."""

    recorded: Floats
    bare: Floats
    begins: bool  # recording starts here; else it ends


def _profiling_overhead_rows(run: RunReader) -> list[Measured]:
    steps = steps_after_warmup(run)
    steps = steps.filter(~pl.col("step").is_in(layer_timed_steps(run).to_list()))
    changes = _profiling_switches(steps)
    reason = _reason_not_comparable(steps, changes)
    if reason:
        return [Measured(name, "run", None, unit, note=reason) for name, unit in _RECORDING_UNITS]
    cost, base = _mean_slowdown_ns(changes), float(np.median(np.concatenate([change.bare for change in changes])))
    count = min(sum(len(change.recorded) for change in changes), len(steps.filter("recorded")))
    note = f"{plural(len(changes), 'change')} between profiled and unprofiled steps"
    if len({change.begins for change in changes}) == 1:
        note += ", all in one direction: drift of the step time is not cancelled"
    value, low, high = (None if bound is None else max(bound, 0.0) for bound in cost)
    step = Measured("recorded_step_overhead", "run", value, "ns", low, high, count, "steps", note)
    share = Measured("recorded_step_overhead_share", "run", *_overhead_share(base, step), count, "steps", note)
    return [step, share, _run_overhead_row(run, step)]


_TOO_FEW = "too few steps to tell"
_RECORDING_UNITS = (
    ("recorded_step_overhead", "ns"),
    ("recorded_step_overhead_share", "1"),
    ("run_overhead_share", "1"),
)


def _overhead_share(base_ns: float, step: Measured) -> tuple[float | None, str, float | None, float | None]:
    value, low, high = (None if x is None else x / base_ns for x in (step.value, step.low, step.high))
    return value, "1", low, high


def _run_overhead_row(run: RunReader, step: Measured) -> Measured:
    """Profiled steps times their cost, and the pauses to write them, as a share of the run without both.

    Steps whose layers alone were timed count likewise, with what they took longer; of others what following them took.
    """
    steps, layers = run.steps, layer_timed_steps(run)
    layers_ns = len(layers) * _median_slowdown_ns(run, layers)
    recorded = int(steps["recorded"].sum())
    stated = run.meta.get("overhead") or {}
    spent = ("paused_ns", "once_ns", "followed_ns")
    paused_ns, once_ns, followed_ns = (float(stated.get(name) or 0) for name in spent)
    spent_ns = float(steps["t1_ns"][-1] - steps["t0_ns"][0])

    def share(cost_ns: float | None) -> float | None:
        total = None if cost_ns is None else recorded * cost_ns + layers_ns + paused_ns + followed_ns
        return None if total is None else total / max(spent_ns - total, 1)

    note = f"{recorded} profiled of {plural(len(steps), 'step')}"
    note += f", {len(layers)} more of which layers alone were timed" if len(layers) else ""
    note += f", and {paused_ns / 1e6:.3g} ms to write them"
    note += f", {followed_ns / 1e6:.3g} ms to follow the others" if followed_ns else ""
    note += f"; besides, {once_ns / 1e6:.3g} ms once" if once_ns else ""
    value = share(step.value)
    if value is None or value > _MOST:
        return Measured("run_overhead_share", "run", None, "1", note=_TOO_FEW)
    values = value, "1", share(step.low), share(step.high)
    return Measured("run_overhead_share", "run", *values, len(steps), "steps", note)


def _median_slowdown_ns(run: RunReader, chosen: pl.Series) -> float:
    """Return by how much the median of these steps exceeds that of the steps a step time is taken from, ns."""
    lengths = steps_after_warmup(run).filter(pl.col("step").is_in(chosen.to_list()))["length_ns"]
    usual = timed_steps(run)[0]["length_ns"].median()
    typical = lengths.median()
    if not isinstance(typical, float) or not isinstance(usual, float):
        return 0.0
    return max(typical - usual, 0.0)


def _reason_not_comparable(steps: pl.DataFrame, changes: list[_ProfilingSwitch]) -> str | None:
    if steps.is_empty():
        return "no steps after the warm-up"
    if steps["recorded"].all():
        return "every step was profiled: nothing to compare with"
    if not steps["recorded"].any():
        return "no step was profiled"
    few = min(sum(len(change.recorded) for change in changes), sum(len(change.bare) for change in changes))
    return _TOO_FEW if few < _FEW_STEPS or len(steps) < _FEWEST else None


def _profiling_switches(steps: pl.DataFrame) -> list[_ProfilingSwitch]:
    """Every change of `recorded` with the steps next to it that lie in the same stretch."""
    lengths, recorded = steps["length_ns"].to_numpy().astype(np.float64), steps["recorded"].to_numpy()
    edges = np.flatnonzero(recorded[1:] != recorded[:-1]) + 1
    bounds = [0, *edges.tolist(), len(lengths)]
    chosen = np.arange(len(edges))
    if len(edges) > _MOST_CHANGES:
        chosen = np.unique(np.linspace(0, len(edges) - 1, _MOST_CHANGES).astype(np.int64))
    switches = []
    for place in chosen.tolist():
        first, edge, last = bounds[place], bounds[place + 1], bounds[place + 2]
        begins = bool(recorded[edge])
        # The first step after a window ran on cold caches, whichever sort it is: it belongs to the pause.
        settled = edge if begins else min(edge + 1, last - 1)
        before, after = lengths[max(first, edge - _NEAR) : edge], lengths[settled : min(last, settled + _NEAR)]
        switches.append(_ProfilingSwitch(after, before, True) if begins else _ProfilingSwitch(before, after, False))
    return switches


def _mean_slowdown_ns(changes: list[_ProfilingSwitch]) -> tuple[float, float | None, float | None]:
    """Mean difference of the medians, ns, with a bootstrap interval over the changes and over the steps of each."""
    random = np.random.default_rng(0)
    draws = [
        _resampled_medians(change.recorded, random) - _resampled_medians(change.bare, random) for change in changes
    ]
    exact = [float(np.median(change.recorded) - np.median(change.bare)) for change in changes]
    value, resampled = 0.0, np.zeros(_RESAMPLES)
    directions = sorted({change.begins for change in changes})
    for begins in directions:
        mine = [index for index, change in enumerate(changes) if change.begins == begins]
        picks = random.integers(0, len(mine), (_RESAMPLES, len(mine)))
        drawn = np.column_stack([draws[index] for index in mine])
        value += float(np.mean([exact[index] for index in mine])) / len(directions)
        resampled += np.take_along_axis(drawn, picks, axis=1).mean(axis=1) / len(directions)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return value, float(low), float(high)


def _resampled_medians(values: Floats, random: np.random.Generator) -> Floats:
    """Medians of resamples of a few steps, (resamples,)."""
    picks = random.integers(0, len(values), (_RESAMPLES, len(values)))
    medians: Floats = np.median(values[picks], axis=1)
    return medians


def resident_before_profiling(run: RunReader) -> float | None:
    """Return the most that was seen resident, B, before the first profiled step; None where no step was without.

    What the profiler allocates between the tensors of a step keeps glibc's heap from joining what they leave: a
    training of large tensors stays larger afterwards than it would alone.
    """
    steps = run.steps
    recorded = steps.filter("recorded")
    if recorded.is_empty() or bool(steps["recorded"][0]):
        return None
    readings = run.samples("rss").filter((pl.col("scope") == "process") & (pl.col("t1_ns") <= recorded["t0_ns"].min()))
    return None if readings.is_empty() else float(readings["value"].max() or 0.0) or None  # type: ignore[arg-type]


def _sampler_overhead_rows(run: RunReader) -> list[Measured]:
    """CPU time of the sampling process, as a share of one core."""
    span = span_ns(run)
    channels = series_of(run, "sampler_cpu_time")
    if span is None or not channels:
        return [Measured("sampler_cpu_share", "sampler", None, "1", note="the sampler's CPU time was not recorded")]
    parts = growth_windows(channels[0], *span, max(shortest_window_ns(channels[0]), (span[1] - span[0]) / 200))
    mean = mean_over_time(parts.rates)
    value, low, high = (None, None, None) if mean is None else mean.row
    low = None if low is None else max(low, 0.0)
    note = "of one core" if value is not None else "the run is too short to tell what the sampler takes"
    return [Measured("sampler_cpu_share", "sampler", value, "1", low, high, len(parts.rates), channels[0].source, note)]


def thinning_sentences(run: RunReader) -> Iterator[str]:
    """Yield which samples are means, of which steps a part is there, and how many windows of operators."""
    begin_ns = int((run.meta.get("clock") or {}).get("monotonic_ns") or 0)
    spans = run.thinned_samples
    for grain in sorted({length for *_, length in spans}, reverse=True):
        first = min(t0 for t0, _, length in spans if length == grain) - begin_ns
        last = max(t1 for _, t1, length in spans if length == grain) - begin_ns
        span = f"{duration(max(first, 0))} to {duration(last)} of the run"
        yield f"samples from {span} are means of {format_mean_span(grain)}"
    if files := run.thinned_steps:
        last_step, coarsest = run.steps["step"].max(), max(part.grain for part in files)
        yield (
            f"{len(run.steps):,} of {plural(int(str(last_step or 0)) + 1, 'step')} are there: all profiled ones, "
            f"and of long ago one block of 64 in up to {coarsest:,}"
        )
    there, recorded = run.windows_recorded
    if run.max_disk is not None and there < recorded:
        yield f"{there:,} of {plural(recorded, 'window')} of operators are there, chosen at random"


def format_mean_span(seconds: int) -> str:
    """Return a length of means."""
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
