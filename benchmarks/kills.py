"""`python -m benchmarks.kills`: what docs/reliability.md promises, tried by killing, failing disks and losses of power.

Each scenario does real work in a process whose calls that change files are followed (`benchmarks.faults`). At each such
call once: the process is killed before it, killed in its midst, the call fails (EIO; a full disk, for one call or for a
while; EINTR), takes half of what it is given, or the power goes. Then a fresh process looks at what is there, goes on
with the work as a user would, and looks again. Random pairs of kills follow, the second within the going on. Wrong is
what breaks a promise: every scenario says which facts it was told are safe, and compares them with what is read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import kills_long as long
from benchmarks.faults import Ended, Fault, Say, apart, each, follow, possible
from stepscope.errors import RunDamaged, RunError, RunNotFound, StepscopeError
from stepscope.liveness import process_identity
from stepscope.runfolder import Part, RunWriter
from stepscope.runfolder.schema import MEMORY_COLUMNS, OPS_COLUMNS, TEXT

STEPS, BLOCK = 8, 4  # of a training, and between two flushes
START_NS = 5_000_000_000_000
FULL_TO_THE_END = "the disk refused until the process had ended"
_BEGIN, _END = "<!-- counts -->", "<!-- end of counts -->"


@dataclass(frozen=True)
class Scenario:
    """Work that is tried, in a folder of its own.

    prepare: what is there before; act: the work, which says what is safe from then on; look: the broken promises that
    the folder shows, given what was said, how it ended, and whether contents may be lost (power); again: the same work
    taken up by its user, None where a run that has ended cannot be gone on with.
    """

    name: str
    act: Callable[[Path, Say], None]
    look: Callable[[Path, list[Any], bool], list[str]]
    prepare: Callable[[Path], None] = lambda folder: None
    again: Callable[[Path, Say], None] | None = None
    whole: Callable[[Path], list[str]] | None = None  # after it was done again without a fault


@dataclass
class Tally:
    """Counts of a scenario."""

    points: int = 0
    cases: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Processes that were killed by the campaign."""
        return self.cases["killed before a call"] + self.cases["killed within a call"] + 2 * self.cases["killed twice"]


# one training


def step_row(step: int) -> tuple[int, int, int, int, float, bool]:
    """A step whose every number follows from its own."""
    t0_ns = START_NS + step * 1_000_000
    return step, t0_ns, t0_ns + 900_000 + step, 16, 1.0 / (step + 1), step % 2 == 0


def _part(columns: Mapping[str, str], first: int, rows: int, **texts: str) -> Part:
    numbers = np.arange(first * 100, first * 100 + rows, dtype=np.int64)
    known: dict[str, Any] = {name: numbers for name, kind in columns.items() if kind != TEXT}
    known |= {"step": np.full(rows, first), "parent": np.full(rows, -1), "thread": np.ones(rows, dtype=np.int64)}
    known |= {"t0_ns": START_NS + numbers, "t1_ns": START_NS + numbers + 7, "self_ns": np.full(rows, 7)}
    known |= {"t_ns": START_NS + numbers}
    named = {"phase": "forward", "device": "cpu", "category": "other"}
    spoken = {name: [named.get(name, f"{name} {first}")] for name, kind in columns.items() if kind == TEXT}
    known |= {name: np.zeros(rows, dtype=np.int64) for name in spoken}
    return Part({name: known[name] for name in columns}, spoken)


def train(folder: Path, say: Say) -> None:
    """A training as the session writes it: a refusal of the disk costs what it refuses."""
    begun: list[RunWriter] = []

    def safely(act: Callable[[], Any], *safe: Any) -> None:
        try:
            act()
            for what in safe:
                say(what)
        except OSError:
            return

    try:
        begun.append(RunWriter.create(folder, "torture"))
    except StepscopeError:
        return
    writer = begun[0]
    safely(lambda: writer.update(**process_identity(_pid()), warmup_steps=3), "begun")
    safely(lambda: writer.write_device({"board": {"name": "torture"}}))
    for block in range(STEPS // BLOCK):
        for step in range(block * BLOCK, (block + 1) * BLOCK):
            writer.append_step(*step_row(step))
        safely(writer.flush_steps, ["steps", (block + 1) * BLOCK])
        safely(lambda: writer.write_ops(_part(OPS_COLUMNS, block, 5)), ["ops", block])  # noqa: B023
        safely(lambda: writer.write_memory_events(_part(MEMORY_COLUMNS, block, 5)), ["memory", block])  # noqa: B023
        safely(lambda: writer.append_event("block", f"block {block}"), ["event", block])  # noqa: B023
    safely(lambda: writer.write_model([{"module": "", "type": "Net"}]))
    safely(lambda: writer.close("ok"), ["steps", STEPS], "closed")
    if writer.steps_dropped:
        say(["dropped", writer.steps_dropped])


def _pid() -> int:
    import os

    return os.getpid()


def look_at_training(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """Promises of a run folder."""
    from stepscope.runfolder import RunReader

    wrong: list[str] = []
    for path in [path for path in folder.iterdir() if path.is_dir()]:
        try:
            run = RunReader(path)
        except RunNotFound:
            wrong += ["a run that had begun is not there"] if "begun" in said else []
            continue
        except RunError as error:
            wrong += [f"the run does not open: {error}"] if "begun" in said or not lossy else []
            continue
        wrong += _look_at_run(run, said, lossy)
    return wrong


def _look_at_run(run: Any, said: list[Any], lossy: bool) -> Iterator[str]:
    facts = {tuple(what) for what in said if isinstance(what, list)}
    rows = run.steps.rows()
    if not set(rows) <= {step_row(step) for step in range(STEPS)}:
        yield f"steps were read that were never written: {sorted(set(rows) - {step_row(s) for s in range(STEPS)})[:2]}"
    for table, frame in (("ops", run.ops), ("memory", run.memory_events)):
        true = {block: _frame(table, block) for block in range(STEPS // BLOCK)}
        for (block,), read in frame.group_by("step", maintain_order=True):
            if block not in true or read.rows() != true[block].rows():
                yield f"{table}: rows of step {block} are not those that were written"
        if not lossy and (gone := {b for name, b in facts if name == table} - {*frame["step"].to_list()}):
            yield f"{table}: {gone} were written and are gone"
    if lossy:
        return
    if run.damaged:
        yield f"called damaged: {run.damaged}"
    flushed = max((count for name, count in facts if name == "steps"), default=0)
    dropped = sum(count for name, count in facts if name == "dropped")
    if len(rows) < flushed - dropped:
        yield f"{flushed} steps were on the disk, {len(rows)} are read"
    blocks = {event.get("message") for event in run.events}
    if lost := {f"block {block}" for name, block in facts if name == "event"} - blocks:
        yield f"events are gone: {lost}"
    if run.status != ("ok" if "closed" in said else "interrupted") and not (
        "closed" not in said and run.status == "ok"
    ):
        yield f"the status reads {run.status}"


def _frame(table: str, block: int) -> Any:
    from stepscope.runfolder.tables import frame_of

    return frame_of(_part({"ops": OPS_COLUMNS, "memory": MEMORY_COLUMNS}[table], block, 5), table)


# the sampling process

TICKS = 10


def counting_sensor(sensor: str) -> Any:
    """A sensor that gives 1, 2, 3 and the same below zero: what is invented shows."""
    from stepscope.record.sensors.contract import Channel, OpenSensor

    count = [0]

    def read() -> list[float]:
        count[0] += 1
        return [float(count[0]), -float(count[0])]

    channels = tuple(Channel(f"{sensor}.{n}", sensor, "power", "W", "gauge", "device", "-") for n in ("up", "down"))
    return OpenSensor(channels, read, lambda: None)


def sample(folder: Path, say: Say) -> None:
    """The sampler's own loop over two sensors, with clocks that jump."""
    from stepscope.record.sampler import loop
    from stepscope.record.sampler.rows import EventLog
    from stepscope.record.sensors import Survey
    from stepscope.record.sensors.contract import Pace, Target

    class Counting:
        def __init__(self, name: str) -> None:
            self.NAME = name

        def discover(self, root: Path, target: Target) -> Any:
            return counting_sensor(self.NAME)

    run = folder / "run"
    target, events = Target(_pid()), EventLog(run / "events.jsonl")
    loop.CHORES_NS = 0  # after every tick, however busy the machine is
    walls = iter([0, 0, 0, 3_600_000_000_000, 3_600_000_000_000, -86_400_000_000_000])
    last = [0]

    def wall() -> int:
        last[0] = next(walls, last[0])
        return last[0]

    vars(loop)["unix_minus_monotonic_ns"] = wall
    found = {name: counting_sensor(name) for name in ("a", "b")}
    opener = loop.StreamOpener(run, Path("/"), target, events, 100_000)
    opener._sensors = {name: Counting(name) for name in found}
    seen = Survey(found, {})
    streams, readers = opener.open(seen, {})
    rows = [run / "samples" / f"{name}.rows" for name in found]
    ticks = [0]

    def wait(seconds: float) -> bool:
        ticks[0] += 1
        time.sleep(0.0005)
        say(["rows", *(path.stat().st_size // 32 if path.exists() else 0 for path in rows)])
        return ticks[0] >= TICKS

    sampling = loop.Sampling(streams, events, Pace(), 100_000, readers=readers)
    sampling.late_streams = opener.late_streams(seen, 1 << 60)
    sampling.run(wait)
    say("ended")


def _a_run(folder: Path) -> None:
    writer = RunWriter.create(folder, "torture")
    writer.path.rename(folder / "run")
    RunWriter.attach(folder / "run").update(status="failed")


def look_at_samples(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """Promises of samples: nothing is invented, nothing that was on the disk goes, and what is refused is said."""
    from stepscope.runfolder import RunReader

    run, wrong = RunReader(folder / "run"), []
    reached = [what[1:] for what in said if isinstance(what, list) and what[0] == "rows"]
    kinds = [event["kind"] for event in run.events]
    for place, name in enumerate(("a", "b")):
        frame = run.sensor(name)
        ups = frame[f"{name}.up"].to_list() if frame.width > 2 else []
        downs = frame[f"{name}.down"].to_list() if frame.width > 2 else []
        if ups != sorted(set(ups)) or downs != [-up for up in ups] or 0.0 in ups:
            wrong.append(f"samples of {name} that no sensor gave: {ups[:3]} {downs[:3]}")
        if not lossy and reached and len(ups) < reached[-1][place]:
            wrong.append(f"{reached[-1][place]} rows of {name} were on the disk, {len(ups)} are read")
        missing = not lossy and "ended" in said and ups != [float(n) for n in range(1, TICKS + 1)]
        if missing and "samples-dropped" not in kinds and FULL_TO_THE_END not in said:  # no event fits either
            wrong.append(f"rows of {name} are missing and no event says so: {len(ups)}")
    if not lossy and run.damaged:
        wrong.append(f"called damaged: {run.damaged}")
    if not lossy and "ended" in said and "clock-jump" not in kinds:
        wrong.append("the clocks jumped and no event says so")
    return wrong


# packing


def closed_run(folder: Path) -> None:
    """A run that has ended, with two ranks of samples, as rows and parts."""
    train(folder, lambda what: None)
    (path,) = folder.iterdir()
    from stepscope.files import replace_json

    channels = [
        {"id": f"a.{n}", "sensor": "a", "quantity": "power", "unit": "W", "kind": "gauge", "scope": "device"}
        for n in "xy"
    ]
    replace_json(path / "channels.json", {"channels": channels})
    rows = np.zeros(500, dtype=np.dtype([("t0", "<i8"), ("t1", "<i8"), ("x", "<f8"), ("y", "<f8")]))
    rows["t0"] = START_NS + np.arange(500) * 1000
    rows["t1"], rows["x"], rows["y"] = rows["t0"] + 5, np.arange(500), -np.arange(500)
    (path / "samples" / "a.rows").write_bytes(rows.tobytes())


def pack_it(folder: Path, say: Say) -> None:
    """What `stepscope run` does after the end."""
    from stepscope.runfolder.pack import pack

    (path,) = folder.iterdir()
    with contextlib.suppress(OSError):
        pack(path)
        say("packed")


def look_at_packed(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """Whatever became of the packing, all is there: also after a loss of power, for what was packed was on the disk."""
    from stepscope.runfolder import RunReader

    (path,) = folder.iterdir()
    run = RunReader(path)
    wrong = list(_look_at_run(run, ["begun", "closed", ["steps", STEPS]], False))
    wrong += [] if run.ops.height == run.memory_events.height == STEPS // BLOCK * 5 else ["ops or memory are gone"]
    values = run.sensor("a")
    if values.height != 500 or values["a.x"].to_list() != [float(n) for n in range(500)]:
        wrong.append(f"{values.height} of 500 samples are read")
    return wrong


def look_at_packed_again(folder: Path) -> list[str]:
    """After the second packing nothing of the first is left."""
    (path,) = folder.iterdir()
    left = [p.name for p in path.rglob("*") if p.suffix in (".rows", ".part")]
    return [f"left behind: {left}"] if left else []


# many runs

POINTS = 4


def measure_sweep(folder: Path, say: Say) -> None:
    """A sweep of points, begun or gone on with."""
    from stepscope.errors import OutputNotWritable
    from stepscope.experiments.engine.engine import ProgressCallbacks, measure_points
    from stepscope.experiments.engine.folder import SweepFolder
    from stepscope.experiments.engine.sweep_points import SweepPoint, WorkloadEntry

    entry = WorkloadEntry("ok", ("smoke",), 1, "sgd", ("sgd",), {"parameters": 7}, {}, "line 1\n")
    order = [vars(SweepPoint("ok", 1, "sgd", "fp32", 1, "cpu", repeat)) for repeat in range(POINTS)]
    path = folder / "sweep"
    try:
        if (path / "sweep.json").exists():
            sweep = SweepFolder(path)
        else:
            sweep = SweepFolder.create(path, {"order": order, "rules": {}}, [entry])
        say("begun")

        def measure(point: Any, _: Any) -> dict[str, Any]:
            say(["measured", point.id])
            return {"status": "ok", "value": point.repeat}

        watch = ProgressCallbacks(ends=lambda point, place, count, result: say(["kept", point.id]))
        with sweep.locked():
            measure_points(sweep, sweep.order, measure, watch)
        say("ended")
    except OutputNotWritable as error:
        say(["refused", str(error)])


def look_at_sweep(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """A result that was kept is there for ever, and is not measured again."""
    from stepscope.experiments.engine.folder import SweepFolder

    kept = [what[1] for what in said if what[0] == "kept"]
    measured = [what[1] for what in said if what[0] == "measured"]
    again = [name for name in kept if said.index(["kept", name]) < len(said) - 1 - said[::-1].index(["measured", name])]
    wrong = [f"measured again though kept: {again}"] if again else []
    if not (folder / "sweep" / "sweep.json").exists():
        return [*wrong, "a sweep that had begun is not there"] if "begun" in said else wrong
    results = SweepFolder(folder / "sweep").results()
    wrong += [f"a result that was kept is gone: {name}" for name in kept if name not in results]
    odd = [name for name, result in results.items() if result.get("status") != "ok" or name not in measured]
    return wrong + ([f"results that nobody measured: {odd}"] if odd else [])


def look_at_whole_sweep(folder: Path) -> list[str]:
    """After it was gone on with, every point has its result."""
    from stepscope.experiments.engine.folder import SweepFolder

    results = SweepFolder(folder / "sweep").results()
    return [] if len(results) == POINTS else [f"{len(results)} of {POINTS} results"]


def measure_study(folder: Path, say: Say) -> None:
    """A study with its findings."""
    import polars as pl

    from stepscope.analysis.results import Findings
    from stepscope.errors import OutputNotWritable
    from stepscope.experiments.engine.engine import Point, ProgressCallbacks, measure_points
    from stepscope.experiments.engine.folder import StudyFolder

    try:
        study = StudyFolder(folder / "study", "torture", {"points": POINTS})
        say("begun")
        points = [Point(f"p{number}", f"point {number}") for number in range(POINTS)]

        def measure(point: Any, _: Any) -> dict[str, Any]:
            say(["measured", point.id])
            return {"status": "ok"}

        watch = ProgressCallbacks(ends=lambda point, place, count, result: say(["kept", point.id]))
        with study.locked():
            results = measure_points(study, points, measure, watch)
        frame = pl.DataFrame({"point": list(results)})
        study.store_findings(Findings("torture", "all points", (), frames={"points": frame}))
        say("ended")
    except OutputNotWritable as error:
        say(["refused", str(error)])


def look_at_study(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """The same of a study; findings are whole or not there."""
    import json

    kept = [what[1] for what in said if what[0] == "kept"]
    there = {path.stem for path in (folder / "study" / "cells").glob("*.json") if path.name[0] != "."}
    wrong = [f"a result that was kept is gone: {name}" for name in kept if name not in there]
    findings = folder / "study" / "findings.json"
    if findings.exists() and not lossy:
        try:
            json.loads(findings.read_text())
        except ValueError:
            wrong.append("the findings are there in part")
    return wrong


def look_at_whole_study(folder: Path) -> list[str]:
    """After it was gone on with, its findings are there, with the numbers behind them."""
    import json

    import polars as pl

    whole = json.loads((folder / "study" / "findings.json").read_text())["answer"] == "all points"
    rows = pl.read_parquet(folder / "study" / "data" / "points.parquet").height
    return [] if whole and rows == POINTS else ["the findings are not whole"]


# a store


def _local_store(folder: Path) -> Any:
    from stepscope.store import open_store

    return open_store(folder / "store")


def two_runs(folder: Path) -> None:
    """Two runs to push."""
    for number in range(2):
        where = folder / "runs" / str(number)
        where.mkdir(parents=True)
        closed_run(where)
        (path,) = where.iterdir()
        path.rename(folder / "runs" / path.name)
        where.rmdir()


def push_them(folder: Path, say: Say) -> None:
    """`stepscope runs push`."""
    from stepscope.store import push

    paths = sorted((folder / "runs").iterdir())
    with contextlib.suppress(StepscopeError):
        push(_local_store(folder), paths, done=lambda pushed: say(["pushed", pushed.id]))
        say("ended")


def look_at_store(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """What is listed can be pulled, and is what was pushed; after a loss of power what cannot is refused."""
    from stepscope.store import listed, pull

    wrong: list[str] = []
    place = _local_store(folder)
    names = listed(place)["id"].to_list() if (folder / "store").exists() else []
    wrong += [
        f"pushed and not listed: {what[1]}"
        for what in said
        if what[0] == "pushed" and what[1] not in names and not lossy
    ]
    for name in names:
        with tempfile.TemporaryDirectory() as out:
            try:
                (pulled,) = pull(place, [name], Path(out))
                if _content(pulled) != _content(folder / "runs" / name):
                    wrong.append(f"what was pulled of {name} is not what was pushed")
            except StepscopeError as error:
                wrong += [] if lossy else [f"listed, and cannot be pulled: {error}"]
    return wrong


def look_at_whole_store(folder: Path) -> list[str]:
    """After a second push everything is there."""
    return look_at_store(folder, [["pushed", path.name] for path in (folder / "runs").iterdir()], False)


def a_store(folder: Path) -> None:
    """A store to pull from."""
    two_runs(folder)
    push_them(folder, lambda what: None)


def pull_them(folder: Path, say: Say) -> None:
    """`stepscope runs pull`."""
    from stepscope.store import pull

    names = sorted(path.name for path in (folder / "runs").iterdir())
    with contextlib.suppress(StepscopeError):
        for path in pull(_local_store(folder), names, folder / "out"):
            say(["pulled", path.name])
        say("ended")


def look_at_pulled(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """A run that was pulled is there as a whole, or not at all."""
    there = [path for path in (folder / "out").glob("*") if path.name[0] != "."]
    wrong = [
        f"{path.name} is there in part" for path in there if _content(path) != _content(folder / "runs" / path.name)
    ]
    names = {path.name for path in there}
    return ([] if lossy else wrong) + [
        f"{w[1]} was pulled and is gone" for w in said if w[0] == "pulled" and w[1] not in names and not lossy
    ]


def look_at_all_pulled(folder: Path) -> list[str]:
    """After a second pull all runs are there, and nothing else."""
    wrong = look_at_pulled(folder, [["pulled", path.name] for path in (folder / "runs").iterdir()], False)
    left = [path.name for path in (folder / "out").glob(".*")]
    return wrong + ([f"left behind: {left}"] if left else [])


def _content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# a fleet


def a_device(folder: Path) -> None:
    """A run on a device, as it is offered."""
    (folder / "device").mkdir()
    closed_run(folder / "device")


def gather_it(folder: Path, say: Say) -> None:
    """A gatherer fetches the run of a device into its sweep, begun or gone on with."""
    from stepscope.experiments.engine.folder import SweepFolder
    from stepscope.experiments.engine.sweep_points import SweepPoint, WorkloadEntry
    from stepscope.experiments.fleet.worker import gather_run, list_files

    device = folder / "device"

    async def fetch(pieces: Any) -> list[bytes]:
        return [(device / name).read_bytes()[offset : offset + size] for name, offset, size in pieces]

    entry = WorkloadEntry("ok", ("smoke",), 1, "sgd", ("sgd",), {"parameters": 7}, {}, "line 1\n")
    order = [vars(SweepPoint("ok", 1, "sgd", "fp32", 1, "cpu", 0))]
    path = folder / "sweep"
    with contextlib.suppress(StepscopeError):
        there = (path / "sweep.json").exists()
        sweep = SweepFolder(path) if there else SweepFolder.create(path, {"order": order, "rules": {}}, [entry])
        (point,) = sweep.order
        where = sweep.run_folder(point)
        for left in (2, 1, 0) if sweep.result(point.id) is None else ():  # tries, as a sweep has them
            try:
                asyncio.run(gather_run(sweep, where, [vars(file) for file in list_files(device)], fetch))
                break
            except RunDamaged:
                if not left:
                    raise
        sweep.store_result(point.id, {"status": "ok"})
        say(["gathered", where.name])


def look_at_gathered(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """What is there under the name of the run is the run of the device; once it is gathered the device forgets it."""
    there = [path for path in (folder / "sweep" / "runs").glob("*") if path.name[0] != "."]
    wrong = [f"{path.name} is there in part" for path in there if _content(path) != _content(folder / "device")]
    gone = [what[1] for what in said if what[0] == "gathered" and what[1] not in {path.name for path in there}]
    if lossy and not any(what[0] == "gathered" for what in said):
        return []
    return wrong + [f"{name} was gathered and is gone" for name in gone]


def look_at_all_gathered(folder: Path) -> list[str]:
    """After it was gone on with, the run is there, and nothing else."""
    runs = folder / "sweep" / "runs"
    left = [path.name for path in runs.glob(".coming-*")]
    return (look_at_gathered(folder, [], False) if list(runs.glob("[!.]*")) else ["the run is not there"]) + (
        [f"left behind: {left}"] if left else []
    )


SCENARIOS = (
    Scenario("training", train, look_at_training),
    Scenario("sampling process", sample, look_at_samples, _a_run),
    Scenario("packing", pack_it, look_at_packed, closed_run, pack_it, look_at_packed_again),
    Scenario(
        "packing in mid-run",
        long.sample_in_parts,
        long.look_at_parts,
        _a_run,
        long.pack_the_rest,
        long.look_at_packed_parts,
    ),
    Scenario(
        "thinning", long.thin_it, long.look_at_thinned, long.a_long_run, long.keep_small, long.look_at_thinned_again
    ),
    Scenario("sweep", measure_sweep, look_at_sweep, again=measure_sweep, whole=look_at_whole_sweep),
    Scenario("study", measure_study, look_at_study, again=measure_study, whole=look_at_whole_study),
    Scenario("tune", long.tune_it, long.look_at_tuning, again=long.tune_it, whole=long.look_at_whole_tuning),
    Scenario("push", push_them, look_at_store, two_runs, push_them, look_at_whole_store),
    Scenario("gathering", gather_it, look_at_gathered, a_device, gather_it, look_at_all_gathered),
    Scenario("pull", pull_them, look_at_pulled, a_store, pull_them, look_at_all_pulled),
)

# the campaign

FAULTS: tuple[tuple[str, Callable[[int, int], Iterator[Fault]]], ...] = (
    ("killed before a call", lambda points, seed: each("kill", points)),
    ("killed within a call", lambda points, seed: each("tear", points)),
    ("I/O error", lambda points, seed: each("fail", points, error=errno.EIO)),
    ("no space, once", lambda points, seed: each("fail", points, error=errno.ENOSPC)),
    ("no space for a while", lambda points, seed: each("fail", points, error=errno.ENOSPC, calls=7, until=".reserve")),
    ("interrupted call", lambda points, seed: each("fail", points, error=errno.EINTR)),
    ("half a write", lambda points, seed: each("short", points)),
    ("loss of power", lambda points, seed: (Fault("power", n, seed=seed * 1000 + n) for n in range(1, points + 1))),
)
_NEVER = {"rename", "mkdir", "unlink", "rmdir", "ftruncate", "fsync"}  # no signal interrupts these


def run_case(scenario: Scenario, base: Path, *faults: Fault) -> tuple[list[Any], list[str], Ended]:
    """One case on a copy of what was prepared: what was said, what is wrong, and how the first process ended."""
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        folder = Path(place) / "case"
        shutil.copytree(base, folder, symlinks=True)
        said: list[Any] = []
        wrong: list[str] = []
        first: Ended | None = None
        lossy = False
        for number, fault in enumerate(faults):
            act = scenario.act if number == 0 or scenario.again is None else scenario.again
            ended = follow(lambda say, act=act: act(folder, say), folder, fault)  # type: ignore[misc]
            first = first or ended
            said += [what for what in ended.said if not (isinstance(what, dict) and "raised" in what)]
            said += [] if ended.over else [FULL_TO_THE_END]
            wrong += [f"raised: {w['raised'].strip()[-300:]}" for w in ended.said if isinstance(w, dict)]
            wrong += ["it hangs"] if ended.status == -signal.SIGALRM else []
            lossy = lossy or fault.kind == "power"
            wrong += apart(lambda: scenario.look(folder, said, lossy))  # noqa: B023
        assert first is not None
        if scenario.again is not None and faults[-1].kind != "none":
            more = follow(lambda say: scenario.again(folder, say), folder, Fault())  # type: ignore[misc]
            said += [what for what in more.said if not isinstance(what, dict)]
            wrong += [f"again: {w['raised'].strip()[-300:]}" for w in more.said if isinstance(w, dict)]
            wrong += ["again: it hangs"] if more.status == -signal.SIGALRM else []
            wrong += [f"again: {w}" for w in apart(lambda: scenario.look(folder, said, lossy))]
            if scenario.whole is not None:
                wrong += [f"again: {w}" for w in apart(lambda: scenario.whole(folder))]  # type: ignore[misc]
        return said, wrong, first


def campaign(names: list[str], kinds: list[str], kills: int, every: int, seed: int) -> dict[str, Tally]:
    """Every fault at every call (or every so many), then random pairs of kills until there were so many kills."""
    tallies: dict[str, Tally] = {}
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="kills-base-") as place:
        chosen = [scenario for scenario in SCENARIOS if scenario.name in names]
        for scenario in chosen:
            base = Path(place) / scenario.name
            base.mkdir()
            apart(lambda: scenario.prepare(base))  # noqa: B023
            tally = tallies[scenario.name] = Tally()
            _, wrong, ended = run_case(scenario, base, Fault())
            tally.points, tally.wrong = len(ended.calls), [f"without a fault: {w}" for w in wrong]
            if wrong:
                print(*tally.wrong, sep="\n", flush=True)
            for kind, faults in [(kind, faults) for kind, faults in FAULTS if kind in kinds]:
                for fault in faults(tally.points, seed):
                    if fault.at % every == seed % every and not (fault.error == errno.EINTR and _deaf(ended, fault)):
                        _try(scenario, base, tally, kind, fault)
        while sum(tally.kills for tally in tallies.values()) < kills:
            scenario = draw.choice(chosen)
            tally = tallies[scenario.name]
            pair = [Fault(draw.choice(("kill", "tear")), draw.randint(1, tally.points)) for _ in range(2)]
            if scenario.again is None:
                _try(scenario, Path(place) / scenario.name, tally, "killed within a call", pair[0])
            else:
                _try(scenario, Path(place) / scenario.name, tally, "killed twice", *pair)
    return tallies


def _deaf(ended: Ended, fault: Fault) -> bool:
    return ended.calls[fault.at - 1][0] in _NEVER


def _try(scenario: Scenario, base: Path, tally: Tally, kind: str, *faults: Fault) -> None:
    _, wrong, ended = run_case(scenario, base, *faults)
    tally.cases[kind] += 1
    for line in wrong:
        said = f"{scenario.name}, {kind}, {', '.join(map(str, faults))} ({ended.struck.replace(str(base), '')}): {line}"
        tally.wrong.append(said)
        print(said, flush=True)


def table(tallies: Mapping[str, Tally], took_s: float) -> str:
    """The counts as Markdown."""
    import stepscope

    kinds = [kind for kind, _ in FAULTS] + ["killed twice"]
    head = f"| | calls | {' | '.join(kinds)} | promises broken |"
    lines = [head, "| --- " * (len(kinds) + 3) + "|"]
    for name, tally in tallies.items():
        lines.append(
            f"| {name} | {tally.points} | {' | '.join(str(tally.cases[kind]) for kind in kinds)} | {len(tally.wrong)} |"
        )
    cases = sum(sum(tally.cases.values()) for tally in tallies.values())
    killed = sum(tally.kills for tally in tallies.values())
    when = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    about = (
        f"{when}, Stepscope {stepscope.__version__}, Python {platform.python_version()}, Linux {platform.release()}, "
        f"{platform.machine()}: {cases:,} cases, {killed:,} kills, {took_s:.0f} s."
    )
    return "\n".join([about, "", *lines])


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign of the command line; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="at least so many processes are killed")
    parser.add_argument("--every", type=int, default=1, help="try every so many calls alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[s.name for s in SCENARIOS], metavar="SCENARIO")
    kinds = [kind for kind, _ in FAULTS]
    parser.add_argument("--faults", nargs="+", default=kinds, choices=kinds, metavar="FAULT")
    parser.add_argument("--write", type=Path, help="write the counts between the marks of this page")
    asked = parser.parse_args(arguments)
    if not possible():
        print("calls of processes cannot be followed here: it takes Linux on x86-64, and ptrace(2)")
        return 2
    _import_all()
    if Path("/dev/shm").is_dir():
        tempfile.tempdir = "/dev/shm"  # what the disk does is simulated
    began = time.monotonic()
    tallies = campaign(asked.only, asked.faults, asked.kills, asked.every, asked.seed)
    counts = table(tallies, time.monotonic() - began)
    print(counts)
    if asked.write:
        page = asked.write.read_text(encoding="utf-8")
        before, _, rest = page.partition(_BEGIN)
        asked.write.write_text(f"{before}{_BEGIN}\n{counts}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    return 1 if any(tally.wrong for tally in tallies.values()) else 0


def _import_all() -> None:
    """Import what the forks need; no query of polars may run before a fork."""
    import importlib

    import polars

    import stepscope.experiments.engine.engine
    import stepscope.experiments.fleet.worker
    import stepscope.experiments.tune.experiment
    import stepscope.experiments.tune.judge
    import stepscope.record.sampler.loop
    import stepscope.runfolder.disk_limit
    import stepscope.runfolder.pack
    import stepscope.runfolder.reader
    import stepscope.store

    importlib.import_module("fsspec.implementations.local")
    _ = (polars, stepscope)


if __name__ == "__main__":
    sys.exit(main())
