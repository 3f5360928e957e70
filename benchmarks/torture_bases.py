"""Small runs that have everything that a run can hold, for `benchmarks.torture`: a case takes a tenth of a second.

One is closed and packed, of two processes, with memory, timed layers, source lines, events, rails of power, heat, a GPU
and stored results. One broke off: its rows and parts lie as the training wrote them. One was thinned to its room.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
from tests.analysis.parts import CLOCK, GLOO, join
from tests.analysis.powered import channel, rail, rapl, times
from tests.fabricate import START_NS, STEP, Op, Sampled, fabricate_run
from tests.test_max_disk import kept, parted

from stepscope.runfolder import MEMORY, RunWriter, checksums, part_of
from stepscope.runfolder.pack import pack

_STEPS = 14
_OPS = (
    *STEP,
    Op("c10d::allreduce_", None, "communication", 20),
    Op("gloo:all_reduce", None, "communication", 300, bytes=4_000, thread=GLOO),
    Op("ampere_sgemm_128x64_nn", "fc", "forward", 90, device="cuda:0", thread=7),
)


def _sampled() -> tuple[Sampled, ...]:
    t_ns = times(_STEPS, period_ms=40.0)  # too few for the fit of operators, which takes a second
    wave = 4 + 3 * (t_ns % 16_000_000 < 9_000_000)
    heat = replace(rail("zone", 50.0, t_ns), channel=_other("temperature", "degC", "zone:0", "thermal"))
    clock = replace(rail("clock", 2e9, t_ns), channel=_other("frequency", "Hz", "core:0", "cpufreq"))
    gpu = replace(rail("gpu", 0.5, t_ns), channel=_other("utilisation", "1", "gpu:0", "gpu"))
    counter = rapl("package-0", 9.0, t_ns)
    return rail("VDD_CPU", wave, t_ns), rail("VDD_GPU", wave / 2, t_ns), counter, heat, clock, gpu


def _other(quantity: str, unit: str, scope: str, sensor: str) -> dict[str, object]:
    return {**channel(f"{sensor}.{quantity}", quantity, scope), "unit": unit, "sensor": sensor}


def _memory(step: int) -> pl.DataFrame:
    """A parameter, an activation and a workspace of one step."""
    at = START_NS + step * 16_000_000
    shared = {"step": step, "module": "fc", "op": "aten::addmm", "phase": "forward", "device": "cpu", "shape": "16x10"}
    changes = [(0, 1, 5_000, "parameter"), (10, 2, 640, "saved"), (20, 3, 90_000, "workspace")]
    changes += [(30, 3, -90_000, "workspace"), (40, 2, -640, "saved")]
    rows = [
        {**shared, "t_ns": at + after * 100_000, "tensor": tensor, "bytes": size, "category": category}
        for after, tensor, size, category in changes
    ]
    plain = {name: pl.String if kind == pl.Categorical else kind for name, kind in MEMORY.items()}
    return pl.DataFrame(rows, schema=plain).select(pl.col(name).cast(kind) for name, kind in MEMORY.items())


def written(out: Path, rank: int | None = None) -> Path:
    """A run that broke off: nobody closed it."""
    member = {} if rank is None else {"rank": rank, "world_size": 2, "local_rank": rank}
    header = {"clock": CLOCK, **member}
    run = fabricate_run(out, steps=_STEPS, ops=_OPS, power_w=9.0, sampled=_sampled(), status=None, header=header)
    writer = RunWriter.attach(run)
    for step in (4, 8):
        writer.write_memory_events(part_of(_memory(step), "memory"))
    lines = {"step": 4, "sources": ["train.py:7", "train.py:9"], "rows": [["forward", "fc", "aten::addmm", [0, 1]]]}
    writer.write_source_lines(lines)
    (run / "layers").mkdir(exist_ok=True)
    shutil.copy(min((run / "ops").iterdir()), run / "layers" / "000000.part")
    for kind in ("gap", "clock", "suspend", "sensor-lost", "oom"):
        writer.append_event(kind, f"{kind} of this run", seconds=0.5, sensor="ina3221")
    return run


def packed(out: Path) -> Path:
    """A run of two processes that has ended, with its stored results."""
    runs = [written(out / str(rank), rank) for rank in (0, 1)]
    for run in runs:
        RunWriter.attach(run).close("ok")
        pack(run)
    run = join(*runs)
    whole = out / run.name
    run.rename(whole)
    _with_results(whole)
    return whole


def thinned(out: Path) -> Path:
    """A run of some minutes that had to keep to its room."""
    run = fabricate_run(out, steps=_STEPS, samples=False, status=None, header={"sampler": {"max_disk": 1_000_000}})
    writer = RunWriter.attach(run)
    parted(writer, 4)
    size = sum(path.stat().st_size for path in (run / "samples").iterdir())
    kept(writer, size // 8)
    writer.close("ok")
    pack(run)
    _with_results(run)
    return run


def _with_results(run: Path) -> None:
    import stepscope

    stepscope.text(run)
    stepscope.page(run, run.parent / "page.html")
    files = (path.relative_to(run).as_posix() for path in run.rglob("*.parquet") if ".cache" not in path.parts)
    checksums.record_checksums(run, *(name for name in files if not name.startswith("ranks/")))


def bases(out: Path) -> list[Path]:
    """Write each of them into a folder of its own."""
    return [make(out / make.__name__) for make in (packed, written, thinned)]


if __name__ == "__main__":
    import sys

    print(*bases(Path(sys.argv[1])), sep="\n")
