"""The plan of a sweep from its request: which runs in which order and by which rules; begun, or gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stepscope.errors import RunNotFound, UsageError
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.engine.points import Entry, Grid, names_of_tier, workload_entries, workload_tiers
from stepscope.experiments.engine.request import check_device
from stepscope.experiments.suite import SuiteRun
from stepscope.privacy import cleaned_fields
from stepscope.run_paths import NEWEST
from stepscope.secrets import redacted


def chosen_entries(request: SuiteRun) -> list[Entry]:
    """The workloads that were asked for; the smoke tier by default."""
    return workload_entries(names_of_tier(workload_tiers(), request.name, request.workloads or ()))


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


def sweep_rules(request: SuiteRun, here: bool = True) -> dict[str, Any]:
    """The rules of every run: by steps or by time where one is given, else until the interval is narrow."""
    from stepscope.experiments.engine.limits import refuse_memory_limit
    from stepscope.experiments.suite.rules import Rules, parse_cooldown

    if request.memory is not None:
        refuse_memory_limit(request.memory)
    if request.interval == 1:
        raise UsageError("--interval 1: not a share between 0 and 1", "for example --interval 2%")
    celsius, pause_s = parse_cooldown(request.cooldown, Path("/") if here else None)
    return Rules(**_ends(request), cool_to_celsius=celsius, pause_s=pause_s, memory_bytes=request.memory,
                 time_limit_s=request.time_limit or 900.0, seed=request.seed or 0).to_dict()  # fmt: skip


def sweep_plan(request: SuiteRun, entries: Sequence[Entry], axes: Grid, name: str, here: bool = True) -> dict[str, Any]:
    """Return the content of sweep.json, but for the workloads."""
    from stepscope.experiments.engine.limits import MEMORY_LIMIT_METHOD
    from stepscope.record.device import describe_device

    seed = request.seed or 0
    return {
        "name": name,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "tier": request.tier,
        **cleaned_fields({"argv": redacted(["suite", "run", *request.words()])}),
        "rules": sweep_rules(request, here),
        "limits": {"memory": MEMORY_LIMIT_METHOD if request.memory else None},
        "device": describe_device(),
        "versions": _versions(),
        "order": [point.to_dict() for point in axes.points(entries, seed)],
    }


def default_out(tier: str | None) -> Path:
    """A folder for a new sweep."""
    return Path("suites") / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{tier or 'sweep'}"


def last_sweep(below: Path = Path("suites")) -> Path:
    """The newest sweep."""
    found = sorted(below.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError(f"there is no sweep in '{below}' to go on with", "name its folder: --resume --out DIR")
    return found[-1].parent


def find_sweep(path: Path) -> Path:
    """Return the folder that is meant: the path, or the newest sweep in suites/ for "last"."""
    if str(path) != NEWEST or path.exists():
        return path
    try:
        return last_sweep()
    except UsageError:
        raise RunNotFound("there is no sweep below 'suites'", "make one: stepscope suite run --tier smoke") from None


def _ends(request: SuiteRun) -> Mapping[str, Any]:
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
    """In what a sweep differs from another plan, a line each."""
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
    if request.given:
        other = plan_differences(
            folder.plan, sweep_plan(request, chosen_entries(request), sweep_grid(request), folder.path.name)
        )
        if other:
            said = f"the sweep in '{out}' was begun otherwise than {' '.join(request.given)} asks:\n" + "\n".join(other)
            raise UsageError(said, "leave these options out, or begin a new sweep with another --out")
    folder.refuse_changes(workload_entries([name for name in folder.plan["workloads"] if _is_known(name)]))
    return folder


def _is_known(name: str) -> bool:
    from stepscope import workloads

    try:
        workloads.find(name)
    except UsageError:
        return False
    return True
