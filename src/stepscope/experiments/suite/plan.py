"""The plan of a sweep of the suite: its grid, its rules, and the task that makes one run by them.

Rules: when a run is warm, when it has enough steps, when the device is cool enough, and what spoils a result.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analysis.estimate import median_interval
from stepscope.arrays import Floats
from stepscope.clock import Clock, monotonic_ns
from stepscope.errors import RunNotFound, UsageError
from stepscope.experiments.engine import check_device
from stepscope.experiments.engine.child import Orders, limit_accelerator, limit_memory, run_status_and_reason
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.engine.sweep_points import Grid, WorkloadEntry, find_entries, names_of_tier, workload_tiers
from stepscope.experiments.suite import SuiteRun
from stepscope.experiments.suite.user_entries import is_user_training, refuse_fixed_axes, run_user_training, user_entry
from stepscope.privacy import cleaned_fields, redact_command_line
from stepscope.record.device import temperatures_and_clocks
from stepscope.request import parse_amount
from stepscope.run_paths import NEWEST

WARMUP = 3  # steps, as in the paper of 2019
FEWEST = 2 * WARMUP  # steps of every run, however long they take
MOST = 100_000
_CHECK_EVERY = 10
_POLL_S = 1.0
LONGEST_COOLING_S = 900.0


@dataclass(frozen=True)
class RunRules:
    """Rules of every run of a sweep; what is null does not end a run."""

    steps: int | None = None
    seconds: float | None = None
    interval: float | None = None  # half-width of the 95 % CI of the step time, as a share of it
    cool_to_celsius: float | None = None
    pause_s: float = 0.0
    memory_bytes: int | None = None
    time_limit_s: float = 900.0
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class StopCondition:
    """Asked after each step whether the run has steps enough; keeps the ends of the steps for that."""

    def __init__(self, rules: RunRules, clock: Clock = monotonic_ns) -> None:
        self._rules, self._clock = rules, clock
        self._ends_ns: list[int] = []

    def __call__(self) -> bool:
        ends = self._ends_ns  # the first step's start is not seen, and it is warm-up in any case
        ends.append(self._clock())
        made = len(ends)
        if made < FEWEST:
            return made == self._rules.steps
        if self._rules.seconds is not None and ends[-1] - ends[0] >= self._rules.seconds * 1e9:
            return True
        return self._rules.interval is not None and made % _CHECK_EVERY == 0 and self._is_narrow(self._rules.interval)

    def _is_narrow(self, share: float) -> bool:
        lengths = np.diff(np.array(self._ends_ns, dtype=np.float64))
        median, low, high = (float(x) for x in median_interval(lengths[steady_start(lengths) :]))
        return bool(high - low <= 2 * share * median)  # False where one is NaN


def steady_start(lengths: Floats, fewest: int = WARMUP) -> int:
    """The first step that is not warm-up: where the rest has the least standard error of its mean (MSER).

    lengths: (n,) in order. At least `fewest` and at most half of the steps are excluded; single stalls do not count.
    K. P. White, An effective truncation heuristic for bias reduction in simulation output, Simulation 69, 1997.
    """
    last = len(lengths) // 2
    if last <= fewest:
        return min(fewest, len(lengths))
    tame = np.minimum(lengths, 3 * np.median(lengths[last:]))
    errors = [float(tame[start:].var()) / (len(tame) - start) for start in range(fewest, last + 1)]
    return fewest + int(np.argmin(errors))


def cool_down(
    rules: RunRules,
    root: Path = Path("/"),
    sleep: Callable[[float], None] = time.sleep,
    clock: Clock = monotonic_ns,
) -> dict[str, Any]:
    """Wait for the pause and until the hottest zone is cool enough; what was waited for and reached, for the result."""
    began_ns, first = clock(), hottest_celsius(root)
    if rules.pause_s:
        sleep(rules.pause_s)
    now, target = hottest_celsius(root), rules.cool_to_celsius
    while target is not None and now is not None and now > target and clock() - began_ns < LONGEST_COOLING_S * 1e9:
        sleep(_POLL_S)
        now = hottest_celsius(root)
    return {
        "waited_s": (clock() - began_ns) / 1e9,
        "from_celsius": first,
        "to_celsius": now,
        "reached": target is None or (now is not None and now <= target),
    }


def hottest_celsius(root: Path) -> float | None:
    """The highest temperature of the thermal zones, degrees Celsius; null where none answers."""
    read = [value for value in temperatures_and_clocks(root)["temperatures_celsius"].values() if value is not None]
    return max(read, default=None)


def parse_cooldown(text: str | None, root: Path | None = Path("/")) -> tuple[float | None, float]:
    """(temperature to cool down to, pause in s) from `45C` or `30s`; a temperature needs a sensor.

    root: where the sensors of the device are; None where it is another machine, which flags what it cannot keep.
    """
    if text is None:
        return None, 0.0
    if text.strip().endswith(("C", "c")):
        degrees = parse_amount("--cooldown", text, "degC")
        if root is not None and hottest_celsius(root) is None:
            raise UsageError(f"--cooldown {text}: no temperature can be read here", "give a time: --cooldown 30s")
        return degrees, 0.0
    return None, parse_amount("--cooldown", text, "s")


def train_point(orders: Orders) -> dict[str, Any]:
    """Train as ordered; returns how the run ended."""
    rules = RunRules(**orders["rules"])
    if is_user_training(orders["workload"]):
        return _train_user_training(orders, rules)
    if rules.memory_bytes is not None:
        _start_libraries()
        limit_memory(rules.memory_bytes)
        if orders["device"] != "cpu":
            limit_accelerator(rules.memory_bytes)
    try:
        path = _train(orders, rules)
    except RuntimeError as error:
        # What oneDNN says when an allocation of its own was refused: under a limit on memory that is the limit.
        if rules.memory_bytes is None or "could not create a primitive" not in str(error):
            raise
        traceback.print_exc()
        return {"status": "oom", "reason": str(error)}
    _mark_steady_start(path)
    return run_status_and_reason(path)


def _train_user_training(orders: Orders, rules: RunRules) -> dict[str, Any]:
    """Run a script or a function of the user's own, which makes a run folder too."""
    from stepscope.experiments.engine.process import LOG_FILE, memory_refusal_line, run_folder_in

    ended, out = run_user_training(orders, rules), Path(orders["out"])
    path = run_folder_in(out)
    if ended["status"] == "failed" and rules.memory_bytes is not None:  # also before its first step
        starved = memory_refusal_line((out / LOG_FILE).read_text(encoding="utf-8", errors="replace"))
        ended = ended if starved is None else {"status": "oom", "reason": starved[-300:]}
    if path is not None:
        _mark_steady_start(path)
    return ended


def _start_libraries() -> None:
    """Polars and torch start threads and take memory when first used; refused that, Polars stands still.

    What they have taken counts in the limit all the same, so this changes where memory runs out, not when.
    """
    import io

    import polars as pl
    import torch

    pl.DataFrame({"a": [1, 2]}).group_by("a").len().write_parquet(io.BytesIO())
    torch.ones(8, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]


def _train(orders: Orders, rules: RunRules) -> Path:
    from stepscope import workloads
    from stepscope.record.settings import Settings
    from stepscope.record.train import TrainingChoices, train_workload

    path, _ = train_workload(
        workloads.find(orders["workload"]),
        rules.steps or MOST,
        Settings(out=orders["out"]),
        TrainingChoices(
            **{name: orders[name] for name in ("batch", "optimizer", "device", "precision")},
            seed=rules.seed + orders["repeat"],
        ),
        evaluate=False,
        stop=StopCondition(rules),
    )
    return path


def _mark_steady_start(path: Path) -> None:
    """Write into run.json where the steady state began."""
    from stepscope.runfolder import RunReader, RunWriter

    run = RunReader(path)
    steps = run.steps
    lengths: Floats = (steps["t1_ns"] - steps["t0_ns"]).to_numpy().astype("float64")
    if len(lengths) > run.warmup_steps:
        RunWriter(path, run.meta).update(warmup_steps=steady_start(lengths, run.warmup_steps))


# The plan of a sweep from its request: which runs in which order and by which rules; begun, or gone on with.


def chosen_entries(request: SuiteRun) -> list[WorkloadEntry]:
    """The trainings that were asked for, in this order; the workloads of the smoke tier by default."""
    from stepscope import workloads

    wanted = list(dict.fromkeys(request.workloads or ()))
    own = [name for name in wanted if is_user_training(name)]
    refuse_fixed_axes(request, own)
    named = [name for name in wanted if name not in own]
    tiers = workload_tiers()
    for name in named:
        if name not in tiers:
            workloads.find(name)
    of_tier = names_of_tier(tiers, request.tier_name, named)
    return _entries(wanted or of_tier)


def _entries(names: Sequence[str]) -> list[WorkloadEntry]:
    return [user_entry(name) if is_user_training(name) else find_entries([name])[0] for name in names]


def sweep_grid(request: SuiteRun, here: bool = True) -> Grid:
    """The axes; UsageError or UnknownName where one cannot be. `here`: the runs are made on this machine."""
    device = request.device or "cpu"
    if here:
        check_device(device)
    return Grid(
        batches=request.batch or (),
        optimizers=request.optimizers or (),
        precisions=request.precisions or ("fp32",),
        threads=request.threads or (),
        device=device,
        repeats=request.repeats or (1 if _is_smoke(request) else 3),
    )


_OF_THE_LIMIT = 2 / 3  # that steps may take where nothing else ends a run: the rest is for its begin and its end


def sweep_rules(request: SuiteRun, here: bool = True) -> dict[str, Any]:
    """The rules of every run: by steps or by time where one is given, else until the interval is narrow."""
    from stepscope.experiments.engine.child import refuse_memory_limit

    if request.memory is not None:
        refuse_memory_limit(request.memory)
    if request.interval == 1:
        raise UsageError("--interval 1: not a share between 0 and 1", "for example --interval 2%")
    celsius, pause_s = parse_cooldown(request.cooldown, Path("/") if here else None)
    ends = _stop_rules(request)
    limit_s = request.time_limit or max(RunRules.time_limit_s, 1.5 * (request.seconds or 0.0))
    if request.seconds is not None and request.seconds >= limit_s:
        raise UsageError(f"no run of {request.seconds:g} s ends within {limit_s:g} s", "give a longer --time-limit")
    if request.interval is not None and request.seconds is request.steps is None:  # which may never be that narrow
        ends = {**ends, "seconds": limit_s * _OF_THE_LIMIT}
    return RunRules(**ends, cool_to_celsius=celsius, pause_s=pause_s, memory_bytes=request.memory,
                 time_limit_s=limit_s, seed=request.seed or 0).to_dict()  # fmt: skip


def sweep_plan(
    request: SuiteRun, entries: Sequence[WorkloadEntry], axes: Grid, name: str, here: bool = True
) -> dict[str, Any]:
    """Return the content of sweep.json, but for the workloads."""
    from stepscope.experiments.engine.child import MEMORY_LIMIT_METHOD
    from stepscope.record.device import describe_device

    seed = request.seed or 0
    return {
        "name": name,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "tier": request.tier,
        **cleaned_fields({"argv": redact_command_line(["suite", "run", *request.words()])}),
        "rules": sweep_rules(request, here),
        "limits": {"memory": MEMORY_LIMIT_METHOD if request.memory else None},
        "device": describe_device(),
        "versions": _versions(),
        "order": [point.to_dict() for point in axes.points(entries, seed)],
    }


def default_out(tier: str | None) -> Path:
    """A folder for a new sweep."""
    return Path("suites") / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{tier or 'sweep'}"


def last_sweep() -> Path:
    """The newest sweep."""
    found = sorted(Path("suites").glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError("there is no sweep in 'suites' to go on with", "name its folder: --resume --out DIR")
    return found[-1].parent


def find_sweep(path: Path) -> Path:
    """Return the folder that is meant: the path, or the newest sweep in suites/ for "last"."""
    if str(path) != NEWEST or path.exists():
        return path
    try:
        return last_sweep()
    except UsageError:
        raise RunNotFound("there is no sweep below 'suites'", "make one: stepscope suite run --tier smoke") from None


def _stop_rules(request: SuiteRun) -> Mapping[str, Any]:
    if (request.steps, request.seconds, request.interval) != (None, None, None):
        return {"steps": request.steps, "seconds": request.seconds, "interval": request.interval}
    if _is_smoke(request):
        return {"steps": 40, "seconds": 4.0}  # every family within minutes, on two cores
    return {"steps": 1000, "seconds": 60.0, "interval": 0.02}


def _is_smoke(request: SuiteRun) -> bool:
    return request.tier == "smoke" or (request.tier is None and request.workloads is None)


def _versions() -> dict[str, str]:
    import platform

    import polars
    import torch

    from stepscope import __version__

    return {
        "stepscope": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "polars": polars.__version__,
    }


def plan_differences(kept: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    """Return the differences between a sweep and another plan, a line each."""
    rules = [
        f"  {name.replace('_', ' ')}: {kept['rules'].get(name)} -> {value}"
        for name, value in request["rules"].items()
        if kept["rules"].get(name) != value
    ]
    for axis in ("workload", "batch", "optimizer", "precision", "threads", "device", "repeat"):
        before, after = ({point[axis] for point in content["order"]} for content in (kept, request))
        if before != after:
            rules.append(f"  {axis}: {_comma_list(before)} -> {_comma_list(after)}")
    return rules


def _comma_list(values: set[Any]) -> str:
    ordered = sorted(values, key=lambda value: (value is not None, value))
    return ", ".join(map(str, ordered[:8])) + (" ..." if len(ordered) > 8 else "")


def new_sweep(request: SuiteRun, out: Path, says: Callable[[str], None]) -> SweepFolder:
    """Begin a sweep; what is asked for twice is said."""
    axes, entries = sweep_grid(request), chosen_entries(request)
    twice = axes.duplicates(entries)
    if twice:
        says(f"{twice} settings were asked for more than once: each is run once")
    return SweepFolder.create(out, sweep_plan(request, entries, axes, out.name), entries)


def resume_sweep(request: SuiteRun, out: Path) -> SweepFolder:
    """The sweep as it was begun; refused where a workload has changed or other options are given."""
    folder = SweepFolder(out)
    folder.refuse_programs_of_others(request.workloads or ())
    if request.given_options:
        other = plan_differences(
            folder.plan, sweep_plan(request, chosen_entries(request), sweep_grid(request), folder.path.name)
        )
        if other:
            options = " ".join(request.given_options)
            said = f"the sweep in '{out}' was begun otherwise than {options} asks:\n" + "\n".join(other)
            raise UsageError(said, "leave these options out, or begin a new sweep with another --out")
    folder.refuse_changes([entry for name in folder.plan["workloads"] for entry in _current_entries(name)])
    return folder


def _current_entries(name: str) -> list[WorkloadEntry]:
    """The training of this name as it is now; empty where there is none any more."""
    try:
        return _entries([name])
    except UsageError:
        return []
