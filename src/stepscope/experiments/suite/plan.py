"""The plan of a sweep of the suite: the task that makes one run by its rules, its grid, and what it goes on with."""

from __future__ import annotations

import contextlib
import hashlib
import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stepscope.arrays import Floats
from stepscope.errors import RunNotFound, UsageError, script_not_found_error
from stepscope.experiments.engine import check_device
from stepscope.experiments.engine.child import Orders, limit_accelerator, limit_memory, run_status_and_reason
from stepscope.experiments.engine.engine import installed_versions
from stepscope.experiments.engine.folder import SweepFolder, refuse_other_device
from stepscope.experiments.engine.sweep_points import (
    OWN,
    Grid,
    WorkloadEntry,
    find_entries,
    names_of_tier,
    training_file_digests,
    training_path,
    workload_tiers,
)
from stepscope.experiments.suite import SuiteRun
from stepscope.experiments.suite.best_changes import tune_before_run
from stepscope.experiments.suite.rules import MOST, RunRules, StopCondition, cool_down, parse_cooldown, steady_start
from stepscope.experiments.sweeps.user_training import (
    is_script,
    is_user_training,
    refuse_no_function,
    train_user_training,
)
from stepscope.privacy import cleaned_fields, redact_command_line
from stepscope.run_paths import NEWEST


def train_point(orders: Orders) -> dict[str, Any]:
    """Train as ordered, after the setting was tuned where it is to be; returns how the run ended."""
    rules = RunRules(**orders["rules"])
    if rules.tune_s is not None and orders["repeat"] == 0:
        tune_before_run(orders)
        cool_down(rules)
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
    from stepscope.experiments.engine.process import LOG_FILE, memory_refusal_line, run_folder_in

    enough = {"seconds": rules.seconds, "interval": rules.interval, "memory_bytes": rules.memory_bytes}
    ended = train_user_training({**orders, "arguments": (), "steps": rules.steps, "optimizer": None, **enough})
    out = Path(orders["out"])
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

    requested = list(dict.fromkeys(request.workloads or ()))
    own = [name for name in requested if is_user_training(name)]
    _refuse_fixed_axes(request, own)
    named = [name for name in requested if name not in own]
    tiers = workload_tiers()
    for name in named:
        if name not in tiers:
            workloads.find(name)
    of_tier = names_of_tier(tiers, request.tier_name, named)
    return _workload_entries(requested or of_tier)


def _workload_entries(names: Sequence[str]) -> list[WorkloadEntry]:
    return [_user_entry(name) if is_user_training(name) else find_entries([name])[0] for name in names]


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
        repeats=request.repeats or (1 if request.tier_name == "smoke" else 3),
    )


_TUNING_STARTS_S = 300.0
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
    if request.tune is not None:  # it may overrun, on a slow device by its starts
        limit_s += 3 * request.tune + _TUNING_STARTS_S
    return asdict(RunRules(**ends, cool_to_celsius=celsius, pause_s=pause_s, memory_bytes=request.memory,
                           time_limit_s=limit_s, tune_s=request.tune, seed=request.seed or 0))  # fmt: skip


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
        "versions": {name: version for name, version in installed_versions().items() if version is not None},
        "order": [point.to_dict() for point in axes.points(entries, seed)],
    }


def default_out(tier: str | None) -> Path:
    """A folder for a new sweep."""
    return Path("suites") / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{tier or 'sweep'}"


def last_sweep() -> Path:
    """The newest sweep."""
    plans = sorted(Path("suites").glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not plans:
        raise UsageError("there is no sweep in 'suites' to go on with", "name its folder: --resume --out DIR")
    return plans[-1].parent


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
    if request.tier_name == "smoke":
        return {"steps": 40, "seconds": 4.0}  # every family within minutes, on two cores
    return {"steps": 1000, "seconds": 60.0, "interval": 0.02}


def comparable_facts(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the runs of one table have in common, of the device and the versions that a plan or a device states.

    The revision of a board and the last number of Python's version are no difference.
    """
    device, versions = stated.get("device") or {}, dict(stated.get("versions") or {})
    if python := versions.get("python"):
        versions["python"] = ".".join(str(python).split(".")[:2])
    board = re.sub(r"\s+Rev\b.*", "", str(device.get("board") or ""))
    cores = [core for core in device.get("cores") or () if core.get("online") is not False]
    return {
        "device": board or device.get("cpu") or device.get("machine"),
        "cores": len(cores) or None,
        "accelerators": [card.get("model") for card in device.get("accelerators") or ()],
        "power mode": device.get("power_mode"),
        "versions": versions,
    }


_STATED_BY = {
    "batch": ("batch",), "optimizers": ("optimizer",), "precisions": ("precision",), "threads": ("threads",),
    "device": ("device",), "repeats": ("repeat",), "tier": ("workload",), "workloads": ("workload",),
    "cooldown": ("cool_to_celsius", "pause_s"), "memory": ("memory_bytes",), "time_limit": ("time_limit_s",),
    "tune": ("tune_s",),
    **dict.fromkeys(("steps", "seconds", "interval"), ("steps", "seconds", "interval")), "seed": ("seed",),
}  # fmt: skip


def plan_differences(plan: Mapping[str, Any], request: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Return the differences between a sweep and another plan in what these options say, a line each.

    Workloads may be named in part: then those that the sweep does not have are a difference.
    """
    lines = []
    for name in dict.fromkeys(part for option in options for part in _STATED_BY[option]):
        if name in request["rules"]:
            before, after = ({content["rules"].get(name)} for content in (plan, request))
        else:
            before, after = ({point[name] for point in content["order"]} for content in (plan, request))
        if before != after and not (name == "workload" and "tier" not in options and after < before):
            lines.append(f"  {name.replace('_', ' ')}: {_comma_list(before)} -> {_comma_list(after)}")
    return lines


def _comma_list(values: set[Any]) -> str:
    ordered = sorted(values, key=lambda value: (value is not None, value))
    return ", ".join(map(str, ordered[:8])) + (" ..." if len(ordered) > 8 else "")


def new_sweep(request: SuiteRun, out: Path, says: Callable[[str], None]) -> SweepFolder:
    """Begin a sweep; what is asked for twice is said."""
    axes, entries = sweep_grid(request), chosen_entries(request)
    twice = axes.duplicates(entries)
    if twice:
        says(f"{twice} settings were given more than once: each is run once")
    return SweepFolder.create(out, sweep_plan(request, entries, axes, out.name), entries)


def resume_sweep(request: SuiteRun, out: Path) -> SweepFolder:
    """The sweep as it was begun; refused on another device, where a workload has changed or with other options."""
    from stepscope.record.device import describe_device

    folder = SweepFolder(out)
    folder.refuse_programs_of_others(request.workloads or ())
    here = {"device": describe_device(), "versions": installed_versions()}
    refuse_other_device(out, comparable_facts(folder.plan), comparable_facts(here))
    present: list[WorkloadEntry] = []
    for name in folder.plan["workloads"]:
        with contextlib.suppress(UsageError):
            present += _workload_entries([name])
    if request.given_options:
        entries = chosen_entries(request) if {"workloads", "tier"} & request.given_options.keys() else present
        anew = sweep_plan(request, entries, sweep_grid(request), folder.path.name)
        other = plan_differences(folder.plan, anew, request.given_options)
        if other:
            options = " ".join(request.given_options.values())
            text = f"the sweep in '{out}' was begun otherwise than {options} asks:\n" + "\n".join(other)
            raise UsageError(text, "leave these options out, or begin a new sweep with another --out")
    folder.refuse_changes(present)
    return folder


# Trainings of the user's own: scripts, and functions that return the parts of a training. A script decides its batch
# and its optimizer itself; a function takes the batch, and decides the optimizer. What two measurements must have in
# common is the text of the file.


def _user_entry(target: str) -> WorkloadEntry:
    """Return a script, or module:function, as a sweep knows it; UsageError where there is none."""
    script = is_script(target)
    if not script:
        refuse_no_function(target)
    elif not Path(target).is_file():
        raise script_not_found_error(target)
    path = training_path(target)
    source = "" if path is None else path.read_text(encoding="utf-8", errors="replace")
    kind = "script" if script else "function"
    definition: dict[str, Any] = {"own": kind, "source_sha256": hashlib.sha256(source.encode()).hexdigest()}
    imported = {name: digest for name, digest in training_file_digests(target).items() if path and name != path.name}
    if imported:
        definition["modules"] = imported
    about = {"domain": "own", "summary": f"a {kind} of your own", "published": []}
    return WorkloadEntry(target, (), None, OWN, (OWN,), definition, about, source)


def _refuse_fixed_axes(request: SuiteRun, targets: Sequence[str]) -> None:
    """Raise UsageError for axes that a training of the user's own decides itself, with how it can be done."""
    for target in targets:
        alone = f"leave it out, or name '{target}' in a sweep of its own"
        if request.fleet is not None:
            hint = f"a workload in a file travels: {Path(target).stem}.py:NAME (docs/add-a-workload.md)"
            raise UsageError(f"'{target}': a script or function does not travel to the boards of a fleet", hint)
        if request.optimizers is not None:
            raise UsageError(f"--optimizers: '{target}' decides that itself", alone)
        if request.device not in (None, "cpu"):
            raise UsageError(f"--device: '{target}' decides that itself", alone)
        if request.batch is not None and is_script(target):
            hint = f"leave it out, or: stepscope study batch {target} -- --batch {{batch}}"
            raise UsageError(f"--batch: '{target}' decides that itself", hint)
        unknown = [name for name in request.precisions or () if name not in ("fp32", "bf16")]
        if unknown:
            text = f"{', '.join(unknown)}: '{target}' scales its loss and quantises its model itself, or not at all"
            raise UsageError(text, "leave it out: fp32 and bf16 are made for it")
