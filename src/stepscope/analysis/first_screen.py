"""The answer of a run, which the first screen of every medium gives: how fast, at what cost, what limits it, what next.

Numbers in SI units with their 95 % CI; the terminal, the page and `brief` draw the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.channels import series_of
from stepscope.analysis.device.throttling import detect_throttling
from stepscope.analysis.memory.events import peak_by_module
from stepscope.analysis.process_scopes import ALL, OWN
from stepscope.analysis.summary import module_rows, reserved_bytes
from stepscope.analysis.time.accelerators import accelerator_without_kernels, launched_kernels
from stepscope.analysis.time.operators import CPU, FRAMEWORK_OVERHEAD
from stepscope.analysis.time.steps import observed_batch, span_ns
from stepscope.quantities import KINDS, find_quantity
from stepscope.units import number

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


@dataclass(frozen=True)
class Headline:
    """A headline number, SI unit, with its 95 % CI; `kind` is "", "simulated" or "estimated"; `note` what it is of.

    whole: what there is of it on this machine.
    """

    metric: str
    label: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    kind: str = ""
    note: str = ""
    whole: float | None = None


_WHOLE = ("run", "total", "device", ALL, *OWN)


def workload_facts(run: Run) -> dict[str, Any]:
    """Return what was trained, as the run says it: `name`, `batch_size`, `optimizer`, ...; of early runs the name."""
    workload = run.meta.get("workload")
    return workload if isinstance(workload, dict) else {"name": workload}


def setting_facts(run: Run) -> list[str]:
    """Return what was trained on what: workload, batch, optimizer, precision, device, threads, steps, day."""
    about = workload_facts(run)
    batch, threads = about.get("batch_size") or observed_batch(run), run.meta.get("threads")
    facts = [
        about.get("name") or run.id,
        f"batch {batch}" if batch else None,
        about.get("optimizer") or observed_optimizer(run),
        about.get("precision"),
        f"times of {machine_name(run) or 'this machine'}" if run.simulated is not None else machine_name(run),
        f"{threads} thread{'' if threads == 1 else 's'}" if threads else None,
        f"{len(run.steps):,} step{'' if len(run.steps) == 1 else 's'}",
        _day_of_run_id(run.id),
    ]
    return [str(fact) for fact in facts if fact]


def observed_optimizer(run: Run) -> str | None:
    """Return the optimizers whose steps were profiled; null where none was."""
    names = run.self_times["name"].str.extract(r"^Optimizer\.step#(.+)\.step$").drop_nulls().unique().sort()
    return ", ".join(names) or None


def machine_name(run: Run) -> str | None:
    """Return the name of the machine that trained; of a run with simulated sensors never that of the board."""
    board, processor = run.device.get("board"), run.device.get("cpu")
    stated = board.get("name") if isinstance(board, dict) else board
    name = processor if run.simulated is not None else stated or processor
    used = str(workload_facts(run).get("device") or "cpu")
    gpus = [str(gpu["name"]) for gpu in _gpus_used(run) if gpu.get("name")]
    if gpus:
        names = [f"{count} {gpu}" if count > 1 else gpu for gpu, count in Counter(gpus).items()]
        return f"{', '.join(names)} ({'cuda' if used == 'cpu' else used})"
    return f"{name or used} ({used})" if used != "cpu" else name and str(name)


def _gpus_used(run: Run) -> list[dict[str, Any]]:
    """The GPUs that the training had memory of; all that it saw where that was not recorded."""
    stated = run.device.get("accelerators_torch")
    gpus = [gpu for gpu in stated if isinstance(gpu, dict)] if isinstance(stated, list) else []
    reserved = reserved_bytes(run)
    return [gpu for gpu in gpus if f"cuda:{gpu.get('index')}" in reserved] or gpus


def _day_of_run_id(name: str) -> str | None:
    stamp = name.partition("T")[0]
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:]}" if len(stamp) == 8 and stamp.isdigit() else None


def headline(run: Run) -> list[Headline]:
    """Return step time, throughput, energy and power of the whole device, peak memory, temperature and accuracy."""
    rows = [
        _headline_of_metric(run, name)
        for name in ("step_time", "throughput", "energy_per_step", "mean_power", "peak_memory")
    ]
    return [
        *(row for row in rows if row is not None),
        *_gpu_memory_headline(run),
        *_temperature_headline(run),
        *_accuracy_headline(run),
    ]


def _headline_of_metric(run: Run, name: str) -> Headline | None:
    """The row of the whole: of all processes, of the process, or of the device; measured before estimated."""
    rows = run.metrics().filter(pl.col("value").is_not_null() & pl.col("scope").is_in(_WHOLE))
    of_process = pl.col("source").is_in(["peak_rss", "rss"])
    for kind in KINDS:
        matches = rows.filter(pl.col("metric") == f"{kind}{name}")
        if matches.is_empty():
            continue
        row = matches.sort(~of_process, ~pl.col("scope").is_in(["total", ALL]), maintain_order=True).row(0, named=True)
        quantity, of_memory = find_quantity(name, row["unit"]), name == "peak_memory"
        low, high = (None, None) if of_memory else (row["low"], row["high"])
        whole = _machine_memory_bytes(run) if of_memory else None
        note = _rank_throughput_note(run) if name == "throughput" else row["note"] or ""
        label_and_value = quantity.label, row["value"], quantity.shown_unit
        return Headline(name, *label_and_value, low, high, kind.rstrip("_"), note, whole)
    return None


def _rank_throughput_note(run: Run) -> str:
    """Return that a throughput is of one rank of several, with the sum over them; empty where one process trained."""
    if len(run.ranks) < 2 or run.rank_table()["last_share"].is_null().all():
        return ""
    rates = run.rank_table()["samples_per_s"]
    whole = "" if rates.has_nulls() else f"; the sum of {len(rates)} ranks is {number(float(rates.sum()))}"
    return f"of rank {run.rank_table()['rank'][0]}{whole}"


def _machine_memory_bytes(run: Run) -> float | None:
    total = run.device.get("memory_bytes") or (run.device.get("memory") or {}).get("total_bytes")
    return float(total) if isinstance(total, int | float) else None


def _gpu_memory_headline(run: Run) -> Iterator[Headline]:
    """The most that the training held of its GPUs: as the driver said, or at least what the allocator reserved."""
    gpus = _gpus_used(run)
    if not gpus:
        return
    of_driver = [float(series.values.max()) for series in series_of(run, "process_memory") if len(series.values)]
    of_allocator = sum(size for device, size in reserved_bytes(run).items() if device.startswith("cuda"))
    most = max(sum(of_driver), float(of_allocator))
    sizes = [gpu.get("memory_bytes") for gpu in gpus]
    whole = sum(float(size) for size in sizes if isinstance(size, int | float)) or None
    note = "context and libraries included" if of_driver else "of the allocator alone: the driver's own is not in it"
    if most:
        yield Headline("gpu_memory", "GPU memory", most, "B", note=note, whole=whole)


def _temperature_headline(run: Run) -> Iterator[Headline]:
    """The highest temperature while steps ran, and whether something was throttled, as far as that was looked at."""
    span = span_ns(run)
    if span is None:
        return
    read = [
        (float(inside.max()), series.scope.removeprefix("zone:"))
        for series in series_of(run, "temperature")
        if len(inside := series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])])
    ]
    if not read:
        return
    value, zone = max(read)
    state = {True: "throttled", False: "not throttled", None: ""}[detect_throttling(run)[0]]
    kind = "" if run.simulated is None else "simulated"
    yield Headline("temperature", f"Hottest zone ({zone})", value, "°C", kind=kind, note=state)


_DATA = {"real-full": "all of it", "real-subset": "a subset", "synthetic": "synthetic data"}


def _accuracy_headline(run: Run) -> Iterator[Headline]:
    result = run.meta.get("result") or {}
    accuracy, samples = result.get("accuracy"), result.get("accuracy_samples")
    if isinstance(accuracy, int | float):
        stated_data = (run.meta.get("workload") or {}).get("data")
        data = stated_data if isinstance(stated_data, dict) else {}
        phrases = [data.get("name"), _DATA.get(str(data.get("kind")))]
        if samples is not None and samples < (data.get("test_size") or 0):
            phrases.append(f"{samples} of its {data['test_size']} test samples")
        of = ", ".join(str(phrase) for phrase in phrases if phrase)
        yield Headline("accuracy", "Accuracy on test data", float(accuracy), "1", note=of)


_MOSTLY_KNOWN = 0.5  # of the time of a layer: below it, what its known ops attain says nothing of it
LAYER_SCHEMA = {
    **dict.fromkeys(("layer", "type", "parent", "source"), pl.String),
    "parameters": pl.Int64,
    **dict.fromkeys(
        (
            *("forward_ns", "backward_ns", "optimizer_ns", "total_ns", "low_ns", "high_ns", "share", "device_ns"),
            *("joules", "joules_low", "joules_high", "joules_forward", "joules_backward", "joules_optimizer"),
            *("live_bytes", "most_bytes", "flops", "flops_per_s", "attained"),
        ),
        pl.Float64,
    ),
    **dict.fromkeys(("joules_verdict", "limit"), pl.String),
}


def layers(run: Run) -> pl.DataFrame:
    """Return every layer with all that is known of it, longest first; times and energies are of one step.

    Self quantities: what modules inside it do is theirs. `share` is of the step time, `joules` of the rail of the whole
    device, `live_bytes` at the peak of live tensors, `most_bytes` at any time, `flops_per_s` over its forward and
    backward self time (of its kernels, on an accelerator), `attained` the share of what this device could do. Null is
    not measured; a layer without a call has no time.
    """
    frame = run.modules().filter(pl.col("module").is_not_null() & (pl.col("module") != FRAMEWORK_OVERHEAD))
    if frame.is_empty():
        return pl.DataFrame(schema=LAYER_SCHEMA)
    frame = frame.rename({"module": "layer"})
    for more in (_energy_of_layers(run), _memory_of_layers(run), _attained_by_layers(run)):
        frame = frame.join(more, on="layer", how="left", maintain_order="left")
    frame = frame.with_columns(flops_per_s=_layer_rates(run, frame))
    order = "device_ns" if frame["device_ns"].is_not_null().any() else "total_ns"
    ordered = frame.sort(order, "layer", descending=[True, False], nulls_last=True)
    return ordered.select(pl.col(name).cast(kind) for name, kind in LAYER_SCHEMA.items())


def _layer_rates(run: Run, frame: pl.DataFrame) -> pl.Series:
    """FLOP/s of each layer over the time in forward and backward of its kernels; without any, of its operators.

    Null where none of its kernels is known, and where none was recorded of the accelerator that it ran on.
    """
    table, steps = run.step_times.table, max(len(run.step_times.steps), 1)
    spent = table.filter((pl.col("device") != CPU) & (pl.col("phase") != "optimizer"))
    kernels = spent.group_by(layer="module").agg(kernel_ns=pl.col("self_ns").sum() / steps)
    layers_with_kernels = frame.join(kernels, on="layer", how="left", maintain_order="left")
    own_ns = pl.col("total_ns") - pl.col("optimizer_ns").fill_null(0.0)
    on_cpu = pl.lit(not launched_kernels(run).is_empty()) | pl.col("device_ns").is_null()
    busy = pl.coalesce("kernel_ns", pl.when(on_cpu).then(own_ns))
    rate = pl.when((busy > 0) & pl.col("flops").is_not_null()).then(pl.col("flops") / busy * 1e9)
    rates = layers_with_kernels.select(rate.cast(pl.Float64).alias("flops_per_s")).to_series()
    return rates.clear(len(rates)) if accelerator_without_kernels(run) is not None else rates


def _energy_of_layers(run: Run) -> pl.DataFrame:
    energy = run.device_energy(by="module") if run.rails.lines else pl.DataFrame()
    names = ("joules", "joules_low", "joules_high", "joules_forward", "joules_backward", "joules_optimizer")
    schema = {"layer": pl.String, **dict.fromkeys(names, pl.Float64), "joules_verdict": pl.String}
    rows = [] if energy.is_empty() else module_rows(energy)
    rows = [row for row in rows if row["verdict"] != "not identifiable"]  # else a number that nobody vouches for
    keys = ("joules_per_step", "low", "high", "forward", "backward", "optimizer", "verdict")
    return pl.DataFrame([[row["name"], *(row[key] for key in keys)] for row in rows], schema=schema, orient="row")


def _memory_of_layers(run: Run) -> pl.DataFrame:
    """Bytes live at the peak and at most; null where no allocation was recorded."""
    if run.peak() is None:
        return pl.DataFrame(schema={"layer": pl.String, "live_bytes": pl.Float64, "most_bytes": pl.Float64})
    memory = peak_by_module(run.allocations).filter(pl.col("module").is_not_null())
    return memory.select(
        layer="module", live_bytes=pl.col("at_peak").cast(pl.Float64), most_bytes=pl.col("bytes").cast(pl.Float64)
    )


def _attained_by_layers(run: Run) -> pl.DataFrame:
    return (
        run.attained("module")
        .filter(pl.col("known") >= _MOSTLY_KNOWN)
        .select(layer="name", attained="attained", limit="limit")
    )
