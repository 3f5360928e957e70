"""Scenarios of `benchmarks.kills` for runs of days and for `tune`: thinning, packing in mid-run, an experiment.

Each function does the work of one process, or says which promise a folder breaks; the campaign is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults import Say
from stepscope.errors import StepscopeError
from stepscope.files import replace_json
from stepscope.liveness import process_identity
from stepscope.runfolder import Part, RunWriter
from stepscope.runfolder.schema import OPS_COLUMNS, TEXT

START_NS = 5_000_000_000_000

# thinning: a run of four parts, within less room than they take

PARTS, PART_ROWS, PERIOD_NS = 4, 1_000, 10_000_000
PART_STEPS, PROFILED_EVERY = 1_000, 125
WINDOWS, WINDOW_ROWS, WINDOWS_KEPT = 4, 40, 2
MOST_SAMPLES, MOST_STEPS = 35_000, 30_000  # bytes, of 68,000 and 48,000
_HIGHEST = 91.0  # a reading in the midst of what is thinned


def a_long_run(folder: Path) -> None:
    """A run that goes on, of which all parts but the last were packed."""
    from stepscope.runfolder import sample_dtype
    from stepscope.runfolder.pack import pack_closed_parts

    writer = RunWriter.create(folder, "torture")
    writer.update(**process_identity(os.getpid()), warmup_steps=3)
    channels = [
        {"id": name, "sensor": "a", "quantity": quantity, "unit": unit, "kind": kind, "scope": "device"}
        for name, quantity, unit, kind in (("watts", "power", "W", "gauge"), ("joules", "energy", "J", "counter"))
    ]
    replace_json(writer.path / "channels.json", {"channels": channels})
    rows = np.zeros(PARTS * PART_ROWS, dtype=sample_dtype(["watts", "joules"]))
    for name, values in all_readings().items():
        rows[name] = values
    for part in range(PARTS):
        name = f"a.{part:06d}.rows" if part else "a.rows"
        (writer.path / "samples" / name).write_bytes(rows[part * PART_ROWS : (part + 1) * PART_ROWS].tobytes())
    for part in range(PARTS - 1):
        for step in range(part * PART_STEPS, (part + 1) * PART_STEPS):
            writer.append_step(*long_step(step))
        writer.flush_steps()
        writer._steps_part = part + 1
    writer.append_step(*long_step((PARTS - 1) * PART_STEPS))
    writer.flush_steps()
    for _ in pack_closed_parts(writer.path):
        pass


def all_readings() -> dict[str, np.ndarray[Any, Any]]:
    """Every reading of the long run, in columns."""
    draw = np.random.default_rng(7)
    t0 = START_NS + np.arange(PARTS * PART_ROWS) * PERIOD_NS
    watts = 5 + np.sin(t0 / 1e9) + draw.normal(0, 0.1, len(t0))
    watts[PART_ROWS + 234] = _HIGHEST
    return {"t0_ns": t0, "t1_ns": t0 + 40_000, "watts": watts, "joules": np.cumsum(draw.random(len(t0)))}


def long_step(step: int) -> tuple[int, int, int, int, float, bool]:
    """A step of the long run; every number follows from its own, the loss looks random."""
    t0_ns = START_NS + step * 1_000_000 + step * step % 7_919
    return step, t0_ns, t0_ns + 900_000 + step * 31 % 1_009, 16, step * 7_919 % 65_521 / 65_521, is_profiled(step)


def is_profiled(step: int) -> bool:
    """Return whether the operators of a step were recorded."""
    return step % PROFILED_EVERY == 7


def window(number: int) -> Part:
    """Operators of one step; windows of all steps are of one size."""
    numbers = np.arange(WINDOW_ROWS, dtype=np.int64) + 1000 * number
    known: dict[str, Any] = {name: numbers for name, kind in OPS_COLUMNS.items() if kind != TEXT}
    step = number * PROFILED_EVERY + 7
    known |= {"step": np.full(WINDOW_ROWS, step), "parent": np.full(WINDOW_ROWS, -1), "thread": np.ones(WINDOW_ROWS)}
    known |= {"t0_ns": START_NS + numbers, "t1_ns": START_NS + numbers + 7, "self_ns": np.full(WINDOW_ROWS, 7)}
    spoken = {name: ["forward" if name == "phase" else "cpu"] for name, kind in OPS_COLUMNS.items() if kind == TEXT}
    known |= {name: np.zeros(WINDOW_ROWS, dtype=np.int64) for name in spoken}
    return Part({name: np.asarray(known[name], dtype=np.int64) for name in OPS_COLUMNS}, spoken)


def thin_it(folder: Path, say: Say) -> None:
    """A training whose windows are a choice, and the pass that thins its samples and steps."""
    from stepscope.runfolder.parts import to_bytes
    from stepscope.runfolder.writer import WINDOWS_SHARE

    (path,) = folder.iterdir()
    writer = RunWriter.attach(path)
    writer.max_disk = int((WINDOWS_KEPT + 0.5) * len(to_bytes(window(0), "ops")) / WINDOWS_SHARE["ops"])
    for number in range(WINDOWS):
        with contextlib.suppress(OSError):
            writer.write_ops(window(number))
            say(["window", number])
    keep_small(folder, say)


def keep_small(folder: Path, say: Say) -> None:
    """One pass of `python -m stepscope.runfolder.disk_limit RUN --max-disk`."""
    from stepscope.runfolder import disk_limit

    (path,) = folder.iterdir()
    disk_limit.SAMPLES_SHARE, disk_limit.STEPS_SHARE = MOST_SAMPLES / 1e6, MOST_STEPS / 1e6
    disk_limit.main([str(path), "--max-disk", "1000000"])
    say("kept")


def look_at_thinned(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """Whatever became of the pass, also without power: each reading counts once, and what must stay is there."""
    from stepscope.runfolder import RunReader

    (path,) = folder.iterdir()
    run = RunReader(path)
    wrong = [*_look_at_readings(run), *_look_at_long_steps(run), *_look_at_windows(run, said, lossy)]
    if run.damaged and not lossy:
        wrong.append(f"called damaged: {run.damaged}")
    return wrong


def _look_at_readings(run: Any) -> Iterator[str]:
    true, read, sensor = all_readings(), run.sensor("a"), run._long_sensor("a")
    count = sum(file.stands_for for file in sensor.files) if sensor is not None else read.height
    if count != len(true["t0_ns"]):
        yield f"{len(true['t0_ns'])} readings were taken, {count} count"
        return
    middle = ((read["t0_ns"] + read["t1_ns"]) / 2).to_numpy()
    joules = float(np.trapezoid(read["watts"].to_numpy(), middle)) / (middle[-1] - middle[0])
    right = float(np.trapezoid(true["watts"], true["t0_ns"])) / float(true["t0_ns"][-1] - true["t0_ns"][0])
    if abs(joules / right - 1) > 5e-3:  # between parts of 10 s none knows the time: 0.01 % of an hour
        yield f"mean power {joules:.4f} W instead of {right:.4f} W"
    grown = read["joules"].to_numpy()
    if (np.diff(grown) < 0).any() or grown[-1] < 0.99 * true["joules"][-1] or grown[0] > 0.03 * true["joules"][-1]:
        yield f"the counter reads {grown[0]:.1f} to {grown[-1]:.1f} instead of 0 to {true['joules'][-1]:.1f}"
    highest = max((_highest_in(file) for file in sensor.files), default=0.0) if sensor is not None else _HIGHEST
    if highest != _HIGHEST:
        yield f"the highest reading was {_HIGHEST} W, and {highest} W is what is left of it"


def _highest_in(file: Any) -> float:
    frame = file.read(0, file.rows)
    columns = [name for name in ("watts", "watts~high") if name in frame.columns]
    return max(float(value) for name in columns if (value := frame[name].max()) is not None)


def _look_at_long_steps(run: Any) -> Iterator[str]:
    last = (PARTS - 1) * PART_STEPS
    rows = run.steps.rows()
    numbers = [row[0] for row in rows]
    if len(set(numbers)) < len(numbers):
        yield "a step is read twice"
    if odd := [row for row in rows if row != long_step(row[0]) or row[0] > last]:
        yield f"steps that were never written: {odd[:2]}"
    if gone := {step for step in range(last) if is_profiled(step)} - set(numbers):
        yield f"{len(gone)} profiled steps are gone"
    if last not in numbers:
        yield "the newest step is gone"
    if len(numbers) < last / 100:
        yield f"{len(numbers)} of {last} steps are left"


def _look_at_windows(run: Any, said: list[Any], lossy: bool) -> Iterator[str]:
    """The windows that stay are those with the lowest numbers drawn, of those that were written, and are whole."""
    from stepscope.runfolder.tables import frame_of

    true = {number * PROFILED_EVERY + 7: frame_of(window(number), "ops").rows() for number in range(WINDOWS)}
    there = {}
    for (step,), frame in run.ops.group_by("step", maintain_order=True):
        there[step] = frame.rows()
        if there[step] != true.get(step):
            yield f"operators of step {step} are not those that were written"
    written = {what[1] for what in said if isinstance(what, list) and what[0] == "window"}
    present = {(step - 7) // PROFILED_EVERY for step in there}
    # Killed before it was said, a window may have put another one out.
    steps = _steps_that_stay(run.path.name, written) & _steps_that_stay(run.path.name, written | present)
    if not lossy and (gone := steps - set(there)):
        yield f"windows that were to stay are gone: {sorted(gone)}"
    if not lossy and len(written) == WINDOWS and len(there) > WINDOWS_KEPT + 1:
        yield f"{len(there)} windows are there, {WINDOWS_KEPT} have room"


def _steps_that_stay(run: str, numbers: set[int]) -> set[int]:
    from stepscope.runfolder.writer import Reservoir

    stay: set[int] = set()
    reservoir = Reservoir(WINDOWS_KEPT, run)
    for number in sorted(numbers):
        stay = (stay | {number}) - set(reservoir.add(number, 1, number * PROFILED_EVERY + 7))
    return {number * PROFILED_EVERY + 7 for number in stay}


def look_at_thinned_again(folder: Path) -> list[str]:
    """After another pass the run keeps to its room, and nothing of the first one is left."""
    (path,) = folder.iterdir()
    samples = sum(file.stat().st_size for file in (path / "samples").glob("*.parquet"))
    steps = sum(file.stat().st_size for file in path.glob("steps*.parquet"))
    left = [file.name for file in path.rglob(".*.part")]
    rows = {file.name for file in path.rglob("*.rows")} - {f"a.{PARTS - 1:06d}.rows", f"steps.{PARTS - 1:06d}.rows"}
    wrong = [f"left behind: {left} {rows}"] if left or rows else []
    if samples > MOST_SAMPLES or steps > MOST_STEPS:
        wrong.append(f"samples take {samples} of {MOST_SAMPLES} bytes, steps {steps} of {MOST_STEPS}")
    return wrong


# parts that are packed while the run goes on

TICKS, ROWS_OF_A_PART = 24, 6


def sample_in_parts(folder: Path, say: Say) -> None:
    """The sampler's own loop, which goes on to the next part again and again, and the packing process."""
    from benchmarks.kills import FULL_TO_THE_END, counting_sensor
    from stepscope.record.sampler import loop
    from stepscope.record.sampler.rows import CurrentPart, EventLog, PartPacking
    from stepscope.record.sensors import Survey
    from stepscope.record.sensors.contract import Pace, Target
    from stepscope.runfolder import disk_limit

    class Counting:
        NAME = "a"

        def discover(self, root: Path, target: Target) -> Any:
            return found["a"]

    run = folder / "run"
    loop.CHORES_NS = 0  # after every tick, however busy the machine is
    looked = [0]

    def seconds() -> int:  # three at each look, so that a part is packed two looks after it was closed
        looked[0] += 3_000_000_000
        return looked[0]

    class Forked:
        """The packing process, without the second that Python and its libraries take to start."""

        def __init__(self, command: Sequence[str]) -> None:
            self._status: int | None = None
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    os._exit(disk_limit.main(command[3:]))
                finally:
                    os._exit(70)

        def poll(self) -> int | None:
            if self._status is None and os.waitpid(self._pid, os.WNOHANG)[0]:
                self._status = 0
            return self._status

        def kill(self) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, 9)

        def wait(self) -> int:
            if self._status is None:
                os.waitpid(self._pid, 0)
            self._status = 0
            return 0

    found = {"a": counting_sensor("a")}
    target, events = Target(os.getpid()), EventLog(run / "events.jsonl")
    turn = CurrentPart(run / "samples", most_bytes=ROWS_OF_A_PART * 32)
    packing = PartPacking(run, turn, None, seconds, Forked)
    opener = loop.StreamOpener(run, Path("/"), target, events, 100_000, turn=turn)
    opener._sensors = {"a": Counting()}
    seen = Survey(found, {})
    streams, readers = opener.open(seen, {})
    sizes: dict[str, int] = {}
    ticks = [0]

    def wait(_: float) -> bool:
        ticks[0] += 1
        time.sleep(0.003)
        there = {path.name for path in (run / "samples").iterdir()}
        for name in [name for name in there if name.endswith(".rows")]:
            with contextlib.suppress(FileNotFoundError):
                sizes[name] = (run / "samples" / name).stat().st_size
        packed = [name for name in sizes if name not in there and f"{name[:-5]}.parquet" in there]
        say(["rows", sum(sizes.values()) // 32, sum(sizes[name] for name in packed) // 32])
        return ticks[0] >= TICKS

    sampling = loop.Sampling(streams, events, Pace(), 100_000, readers=readers)
    sampling.late_streams = opener.late_streams(seen, 1 << 60)
    sampling.pack_parts = packing.start_packing_if_due
    try:
        sampling.run(wait)
    finally:
        packing.stop()
    if events._waiting:  # the calls of the packing process may have ended the time in which the disk was full
        say(FULL_TO_THE_END)
    say("ended")


def pack_the_rest(folder: Path, say: Say) -> None:
    """What follows once the run has ended."""
    from stepscope.runfolder.pack import pack

    with contextlib.suppress(OSError):
        pack(folder / "run")
        say("packed")


def look_at_parts(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """No reading is lost, doubled or invented; what was packed was on the disk, also where the power goes."""
    from benchmarks.kills import FULL_TO_THE_END
    from stepscope.runfolder import RunReader

    run, wrong = RunReader(folder / "run"), []
    frame = run.sensor("a")
    ups = frame["a.up"].to_list() if frame.width > 2 else []
    downs = frame["a.down"].to_list() if frame.width > 2 else []
    if ups != sorted(set(ups)) or downs != [-up for up in ups] or 0.0 in ups:
        wrong.append(f"samples that no sensor gave, or twice: {ups} {downs[:3]}")
    flushed, packed = next((what[1:] for what in reversed(said) if what[0] == "rows"), (0, 0))
    if len(ups) < (packed if lossy else flushed):
        wrong.append(f"{flushed} rows were written, of which {packed} were packed; {len(ups)} are read")
    missing = not lossy and "ended" in said and ups != [float(n) for n in range(1, TICKS + 1)]
    kinds = [event["kind"] for event in run.events]
    if missing and "samples-dropped" not in kinds and FULL_TO_THE_END not in said:
        wrong.append(f"rows are missing and no event says so: {len(ups)}")
    if run.damaged and not lossy:
        wrong.append(f"called damaged: {run.damaged}")
    return wrong


def look_at_packed_parts(folder: Path) -> list[str]:
    """After the packing at the end every row is in Parquet, and nothing else is left."""
    left = [path.name for path in (folder / "run").rglob("*") if path.suffix in (".rows", ".part")]
    return [f"left behind: {left}"] if left else []


# tune

_TRIED = ("channels_last",)


def tune_it(folder: Path, say: Say) -> None:
    """An experiment of `stepscope tune` on a training with planted times, begun or gone on with."""
    from tests.tune.fake_training import FakeTraining

    from stepscope.experiments.engine.folder import StudyFolder
    from stepscope.experiments.tune.judge import judge
    from stepscope.experiments.tune.pair_statistics import ExperimentStore

    training = FakeTraining({"channels_last": 0.8, "fused": 0.9}, noise=1e-6)

    def keep(name: str, content: Any) -> None:
        study.store_result(name, content)
        say(["kept", name, content.get("pairs", content.get("spent_s"))])

    with contextlib.suppress(StepscopeError):
        study = StudyFolder(folder / "tune", "tune", {"target": "planted"})
        say("begun")
        with study.locked():
            tuning = training.tuning(desk=ExperimentStore(keep, study.results()), only=_TRIED)
            study.store_findings(judge(tuning, "What makes it faster"))
            say("concluded")


def look_at_tuning(folder: Path, said: list[Any], lossy: bool) -> list[str]:
    """Pairs that were kept are there for ever, and are not measured again; findings are whole or not there."""
    from stepscope.experiments.engine.folder import StudyFolder
    from stepscope.experiments.tune.pair_statistics import FINAL

    path, wrong = folder / "tune", []
    if not (path / "study.json").exists():
        return ["an experiment that had begun is not there"] if "begun" in said else []
    try:
        there = StudyFolder(path, "tune", {"target": "planted"}).results()
    except StepscopeError as error:
        return [f"it cannot be gone on with: {error}"]
    for name, last in {what[1]: what[2] for what in said if what[0] == "kept"}.items():
        now = there.get(name, {}).get("spent_s" if name == "progress" else "pairs")
        if now is None:
            wrong.append(f"{name} was kept and is gone")
        elif name == "progress":
            wrong += [f"{last} s were used, {now} s are known of"] if now < last else []
        elif name != FINAL and now[: len(last)] != last:
            wrong.append(f"{name}: {len(last)} pairs were kept, {len(now)} are there, and others")
    findings = path / "findings.json"
    if findings.exists():
        try:
            json.loads(findings.read_text())
        except ValueError:
            wrong.append("the findings are there in part")
    elif "concluded" in said:
        wrong.append("the findings are gone")
    return wrong


def look_at_whole_tuning(folder: Path) -> list[str]:
    """After it was gone on with, it has its answer: what was planted."""
    import polars as pl

    found = json.loads((folder / "tune" / "findings.json").read_text())
    frames = [pl.read_parquet(path).height for path in (folder / "tune" / "data").glob("*.parquet")]
    answer = found["answer"]
    return [] if "channels_last" in json.dumps(found) and frames and min(frames) else [f"the answer is {answer!r}"]
