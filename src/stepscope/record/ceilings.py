"""Ceilings of this device: measured by a child process, kept by device, threads and precision, written into runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.files import read_json_object, try_store_json, user_cache
from stepscope.record.device import describe_device, temperatures_and_clocks, usable_cores
from stepscope.record.empty_process import installed_version
from stepscope.runfolder.schema import PROBED, QUIET, main_computation

FORMAT = 2  # of the probe: another number is measured anew
SWITCH = "STEPSCOPE_CEILINGS"  # "off": nothing is measured after a run, as with --no-ceilings
_AGAIN_S = 600  # after which one that was disturbed is made again
_TIMEOUT_S = 120
_IDENTITY = ("board", "cpu", "machine", "kernel", "power_mode", "governors", "frequency_limits_hz")
_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp64": "float64", **{name: name for name in PROBED}}
Says = Callable[[str], object]


def ceilings(
    device: str = "cpu", precision: str = "float32", threads: int | None = None, again: bool = False
) -> dict[str, Any] | None:
    """Return the ceilings of this device, measured now unless they are known (seconds); None where they cannot be.

    `arithmetic`: FLOP/s by kind and size of the call; `bandwidth`: B/s by working set; `dispatch`: ns of a call;
    `run_queue_share`: how long its threads waited for a core, of the time of the rate that was disturbed most; rates
    without a quiet moment are not there. A probe that was disturbed is made again ten minutes later, and of each rate
    the highest that was seen is kept. threads: those of torch where
    None, which are measured in any case. again: measure in any case.
    """
    conditions: dict[str, Any] = {"device": device, "precision": precision_of(precision), "threads": threads}
    cached = cached_ceilings(device, precision, threads)
    if cached is not None and not again and not _should_probe_again(cached, **conditions):
        return cached
    measured = _run_probe(conditions)
    if measured is None:
        return cached
    conditions["threads"] = measured["threads"]  # those of torch where none were asked for
    cached = cached_ceilings(device, precision, measured["threads"]) if cached is None else cached
    best = measured if cached is None else _merge_probes(cached, measured)
    _store(conditions, best)
    return best


def _should_probe_again(cached: dict[str, Any], device: str, precision: str, threads: int | None) -> bool:
    """Return whether a probe was disturbed by other load, and so long ago that another one may not be."""
    shares = [cached.get("run_queue_share"), *(row.get("waited") for row in cached.get("bandwidth", []))]
    if max(share or 0.0 for share in shares) <= QUIET:
        return False
    with contextlib.suppress(OSError, RuntimeError):
        return time.time() - _cache_file(device, precision, threads).stat().st_mtime > _AGAIN_S
    return False


def cached_ceilings(
    device: str = "cpu", precision: str = "float32", threads: int | None = None
) -> dict[str, Any] | None:
    """Return the ceilings that an earlier probe has measured of this device as it is set up now."""
    try:
        cached = read_json_object(_cache_file(device, precision, threads))
    except RuntimeError:
        return None
    return cached if cached.get("format") == FORMAT else None


def precision_of(stated: object) -> str:
    """The number format that a run computes in, by what its run.json states: float32 where nothing is known."""
    words = str(stated or "").lower().split()
    return _PRECISIONS.get(words[0], "float32") if words else "float32"


def write_ceilings(run: Path, says: Says = lambda sentence: None, measure: bool = True) -> None:
    """Write ceilings of where a run computed into its device.json once it has ended: never beside a training.

    They are of the device and number format of most of its FLOPs; of a format that no probe computes in there are none.
    Nothing is written into a run of no step, of other sensors than this machine's, or that has them already. measure:
    False, and the environment's STEPSCOPE_CEILINGS=off, take only what is known already.
    """
    from stepscope.part_names import has_steps
    from stepscope.runfolder import RunWriter

    try:
        writer = RunWriter.attach(run)
        meta, device = writer.header, read_json_object(run / "device.json")
        conditions = _conditions_of_run(meta, device)
        if device.get("ceilings") or meta.get("simulated") or conditions is None or not has_steps(run):
            return
        stated, conditions = conditions[0], (_card_of(conditions[0], device), *conditions[1:])
        limits = cached_ceilings(*conditions)
        if measure and os.environ.get(SWITCH) != "off" and (limits is None or _should_probe_again(limits, *conditions)):
            says("measuring this device's ceilings, for bottleneck and roofline: once per device, a few seconds")
            limits = ceilings(*conditions)
        if limits is not None:
            writer.write_device({**device, "ceilings": {**limits, "device": stated}})
    except (StepscopeError, OSError) as error:
        says(f"the ceilings of this device could not be written: {error}")


def _conditions_of_run(meta: dict[str, Any], device: dict[str, Any]) -> tuple[str, str, int | None] | None:
    """Return device, precision and threads that ceilings of a run are measured with; None where no probe has them.

    Where no step with FLOPs was profiled with its shapes, they are those that a workload states of itself. Of a script
    that was cut off where there is a GPU, nobody knows which of the two computed.
    """
    threads, computation = meta.get("threads"), main_computation(meta)
    if threads is None:
        return None
    if computation is not None:
        return (computation.device, computation.precision, threads) if computation.is_probed else None
    workload = meta.get("workload") or {}
    has_gpu = bool(device.get("accelerators") or device.get("accelerators_torch"))
    if has_gpu and not workload.get("device") and "at_end" not in device:
        return None
    return str(workload.get("device") or "cpu"), str(workload.get("precision") or ""), threads


def _card_of(device: str, facts: dict[str, Any]) -> str:
    """Return a GPU by what tells it from others, "cuda:GPU-1a2b3c4d": a script may have chosen which ones it sees."""
    index = device.partition(":")[2] or "0"
    cards = facts.get("accelerators_torch") or []
    known = device.startswith("cuda") and index.isdecimal() and int(index) < len(cards)
    identities = str(cards[int(index)].get("card") or "").split() if known else []
    return next((f"cuda:{_UUID}{identity}" for identity in identities if ":" not in identity), device)


_UUID = "GPU-"


def _run_probe(conditions: dict[str, Any]) -> dict[str, Any] | None:
    stated, environment = conditions, None
    if _UUID in conditions["device"]:
        stated = {**conditions, "device": "cuda:0"}
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": conditions["device"].partition(":")[2]}
    command = [sys.executable, "-m", "stepscope.record.ceiling_probe", json.dumps(stated)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=environment)
        rates = json.loads(ended.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    clocks = temperatures_and_clocks()["frequencies_hz"]
    return {"format": FORMAT, **conditions, **rates, "frequencies_hz": clocks} if isinstance(rates, dict) else None


def _merge_probes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge two probes: the higher of each rate, the lower of each cost, and the load of the quieter probe."""
    rows = {}
    for name, rate in (("arithmetic", "flops_per_s"), ("bandwidth", "bytes_per_s")):
        best = {(row["kind"], row.get("flops", row.get("bytes"))): row for row in old.get(name, [])}
        for row in new[name]:
            key = row["kind"], row.get("flops", row.get("bytes"))
            best[key] = max(best.get(key, row), row, key=lambda candidate: float(candidate[rate]))
        rows[name] = list(best.values())
    costs = {name: min(ns, old.get("dispatch", {}).get(name, ns)) for name, ns in new["dispatch"].items()}
    quieter = min(old, new, key=lambda candidate: candidate.get("run_queue_share") or 0.0)
    return {**new, **rows, "dispatch": costs, "run_queue_share": quieter.get("run_queue_share")}


def _store(conditions: dict[str, Any], limits: dict[str, Any]) -> None:
    """Cache the ceilings; where that cannot be, the next run measures again."""
    with contextlib.suppress(RuntimeError):
        try_store_json(_cache_file(**conditions), limits)


def _cache_file(device: str, precision: str, threads: int | None) -> Path:
    """Return the cache file, named after all that changes the ceilings; RuntimeError without a home."""
    facts = describe_device()
    device = device if device == "cpu" or ":" in device else f"{device}:0"
    identity = [FORMAT, device, precision_of(precision), threads, installed_version("torch"), usable_cores()]
    identity += [facts[name] for name in _IDENTITY] + [facts["accelerators"]]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return user_cache() / "ceilings" / f"{digest}.json"
