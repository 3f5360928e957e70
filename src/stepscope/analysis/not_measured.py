"""What a run cannot say, and why: silence is never left to be read as 0."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.own_time import CPU
from stepscope.analysis.power_model import without_utilisation
from stepscope.analysis.steady import FEW, recorded_steps, steady_steps
from stepscope.runfolder import RunReader
from stepscope.units import plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_POWER = ("power", "energy")
_POWER_SENSORS = re.compile(
    r"ina\d|hwmon_power|tegrastats|rapl|nvml|amdsmi|apple|powermetrics|battery|pmic|shelly|tasmota|meter|android"
)
_OF_A_BOARD = re.compile(r"jetson|rpi")  # that another machine lacks them is no news
_ENABLE = (
    "stepscope doctor shows how to open a sensor; a plug or a meter beside the machine works anywhere "
    "(--plug, --meter-command, --meter-csv)"
)
_ESTIMATE = "; --power-model cpu=2W..15W estimates, and is called so"
_LOSSES = ("lost", "gap", "dropped", "stopped", "jump", "damaged", "hung", "stale", "not-read")


IN_RUN, ENERGY, MACHINE, LOST = "in this run", "energy", "not on this machine", "lost or damaged"
GROUPS = (IN_RUN, ENERGY, MACHINE, LOST)


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


def not_measured(run: Run) -> list[NotMeasured]:
    """Everything that is missing from a run, the most general first."""
    return [*_steps(run), *_ops(run), *_memory(run), *_own_cost(run), *_sampled(run), *_damaged(run), *_events(run)]


def _steps(run: RunReader) -> Iterator[NotMeasured]:
    count = len(run.steps)
    if count == 0:
        yield NotMeasured("steps", "the run holds no training step", "check that the script calls optimizer.step()")
    elif steady_steps(run).is_empty():
        which = "the only step is" if count == 1 else f"all {count} steps are"
        why = f"{which} warm-up (the first {run.warmup_steps} are left out)"
        yield NotMeasured("step times", why, f"train for at least {run.warmup_steps + FEW} steps")
    lost = run.meta.get("steps_lost")
    if lost:
        yield NotMeasured(plural(lost, "step"), "their times could not be written", group=LOST)


def _ops(run: Run) -> Iterator[NotMeasured]:
    table = run.own_times
    if table.is_empty():
        steady = len(recorded_steps(run))
        why = "no part of ops/ could be read" if steady else "no step after the warm-up was recorded"
        yield NotMeasured("operations and modules", why)
        return
    seen = table["step"].n_unique()
    if seen < FEW:
        steps = plural(seen, "recorded step")
        why = f"only {steps} after the warm-up, {FEW} are needed: one unusual step can sway the shares"
        yield NotMeasured("intervals of modules and operations", why, "run longer, or with --record all")
    written = set(table["step"].unique())
    missing = [step for step in recorded_steps(run)["step"] if step not in written]
    if missing:
        yield NotMeasured(
            f"operations of {plural(len(missing), 'recorded step')}", "they are not in any readable part of ops/"
        )
    if table["flops"].null_count() == len(table):
        yield NotMeasured("FLOPs", "no operation states how many it does")
    if bool((table["device"] == CPU).all()):
        yield NotMeasured("accelerator utilisation", "no kernel ran on an accelerator")


def _memory(run: RunReader) -> Iterator[NotMeasured]:
    """A run that says nothing of a choice is older than it, and nobody would miss it there."""
    chosen = (run.meta.get("recorder") or {}).get("memory")
    if chosen is not None and run.memory_events.is_empty():
        why = {
            "off": "it was switched off, or looking at it failed",
            "auto": "the run is too short for what a look costs",
        }.get(str(chosen), "no step was recorded")
        yield NotMeasured("memory by layer", why, "--record-memory all")


def _own_cost(run: Run) -> Iterator[NotMeasured]:
    said: set[str] = set()
    for row in run.overhead().filter(pl.col("value").is_null()).iter_rows(named=True):
        if row["note"] not in said:
            what = "sampler's cost" if row["scope"] == "sampler" else "cost of recording"
            yield NotMeasured(what, row["note"])
        said.add(row["note"])


def _sampled(run: Run) -> Iterator[NotMeasured]:
    if not run.channels:
        yield NotMeasured("utilisation and memory", "nothing was sampled in this run")
    absent = _missing(run)
    meters = [entry for entry in absent if _POWER_SENSORS.search(str(entry.get("sensor")))]
    yield from _energy(run, meters)
    for entry in absent:
        absent_here = entry.get("reason") == "absent"
        expected = entry not in meters and not _OF_A_BOARD.match(str(entry.get("sensor")))
        if expected or not absent_here:
            yield _sensor(entry, absent_here, ENERGY if entry in meters else MACHINE if absent_here else IN_RUN)


def _sensor(entry: dict[str, Any], absent: bool, group: str) -> NotMeasured:
    """A sensor that gave nothing; of one that is not there, where was looked is a detail."""
    what, remedy = str(entry.get("sensor", "a sensor")), entry.get("remedy")
    if absent and entry.get("detail"):
        return NotMeasured(what, "this machine has no such sensor", remedy, group, str(entry["detail"]))
    return NotMeasured(what, _reason(entry), remedy, group)


def _energy(run: Run, meters: list[dict[str, Any]]) -> Iterator[NotMeasured]:
    """Why there is no energy, or no total of it: what was tried, and what would enable one."""
    for why in without_utilisation(run):
        remedy = "--power-model cpu=2W..15W, with the CPU or GPU that is sampled"
        yield NotMeasured("estimated energy", why, remedy, ENERGY)
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
    said = "; ".join(["no sensor of this run measures power", *_closed(closed), *_looked_for(absent)])
    there = f"looked for and not there: {', '.join(absent)}" if absent else ""
    yield NotMeasured("energy", said, "; or ".join([*remedies[:1], enable]), ENERGY, there)


def _closed(entries: list[dict[str, Any]]) -> Iterator[str]:
    """What is there and cannot be read, by name: rapl (denied)."""
    for entry in entries:
        yield f"{entry.get('sensor')} ({entry.get('reason')})"


def _looked_for(absent: list[str]) -> Iterator[str]:
    if absent:
        yield f"{plural(len(absent), 'kind')} of power sensor {'is' if len(absent) == 1 else 'are'} not there"


def _missing(run: RunReader) -> list[dict[str, Any]]:
    """Sensors that gave nothing, as the sampler wrote them: sensor, reason, detail, remedy."""
    try:
        content = json.loads((run.path / "channels.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []  # that nothing was sampled is said already
    entries = content.get("missing", []) if isinstance(content, dict) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def _reason(entry: dict[str, Any]) -> str:
    stated = [entry.get("reason"), entry.get("detail")]
    return ": ".join(str(part) for part in stated if part) or "no reason stated"


def _damaged(run: RunReader) -> Iterator[NotMeasured]:
    for name in run.damaged:
        yield NotMeasured(name, "the file is damaged and was left out", group=LOST)


def _events(run: RunReader) -> Iterator[NotMeasured]:
    """One line a kind of loss, with how often it happened."""
    losses: dict[str, list[str]] = {}
    for event in run.events:
        kind = str(event.get("kind", ""))
        if any(word in kind for word in _LOSSES):
            losses.setdefault(kind, []).append(str(event.get("message", "")))
    for kind, messages in losses.items():
        times = f" ({len(messages)} times)" if len(messages) > 1 else ""
        yield NotMeasured(kind, f"{messages[0]}{times}", group=LOST)
