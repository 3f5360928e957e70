"""The changes that help each setting of a sweep: it is tuned before its first run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.clock import monotonic_ns
from stepscope.experiments.engine.child import Orders
from stepscope.experiments.suite.results import SETTING, Results
from stepscope.files import read_json_object
from stepscope.request import is_function

if TYPE_CHECKING:
    from stepscope.experiments.tune import TuneRequest
    from stepscope.experiments.tune.experiment import Tuning

_FILE = "tune.json"
_CHILD = "stepscope.experiments.engine.child"
_TASK = "stepscope.experiments.suite.best_changes:tune_setting"
_NUMBERS = ("as_is_ms", "step_ms", "gain_percent", "gain_percent_low", "gain_percent_high")
_SCHEMA = {
    **dict.fromkeys(SETTING, pl.String), "batch": pl.Int64, "threads": pl.Int64, "changes": pl.String,
    **dict.fromkeys(_NUMBERS, pl.Float64), "checked": pl.String, "answer": pl.String, "code": pl.String,
}  # fmt: skip


def tune_before_run(orders: Orders) -> None:
    """Tune a setting in a process of its own: what that takes is no memory of the run."""
    where = Path(orders["out"])
    where.mkdir(parents=True, exist_ok=True)
    own = {**orders, "task": _TASK, "parent": os.getpid(), "ended": str(where / _FILE)}
    subprocess.run([sys.executable, "-m", _CHILD, json.dumps(own)], check=False)


def tune_setting(orders: Orders) -> dict[str, Any]:
    """Try changes on a setting for as long as its rules say, and return what helps."""
    from stepscope.experiments.tune.tuning_folder import tune_in_folder

    if orders["precision"] != "fp32":
        return {"status": "refused", "reason": "not tuned: precision is one of the changes, so begin at fp32"}
    began_ns = monotonic_ns()
    findings, tuning = tune_in_folder(_request(orders), Path(orders["out"]) / "tune", lambda what, share: None)
    if tuning.interrupted:
        raise KeyboardInterrupt
    answer = findings.answer.replace("(--minutes)", "(--tune)")
    is_known = not any(words in answer for words in ("Cannot tell", "Nothing could be tried"))
    numbers = _numbers(tuning) or ({"changes": []} if is_known else {})
    return {"answer": answer, **numbers, "wall_s": (monotonic_ns() - began_ns) / 1e9}


def read_best_changes(folder: Path) -> dict[str, Any]:
    """Return what helps a setting, from the folder of its run; `failed` says why where that is not known."""
    ended = read_json_object(folder / _FILE) or {"reason": "the process that tunes it has ended without an answer"}
    failed = {} if ended.get("status") == "ok" else {"failed": str(ended.get("reason") or ended.get("status"))}
    return {**(ended.get("result") or {}), **failed}


def _request(orders: Orders) -> TuneRequest:
    from stepscope.experiments.sweeps.user_training import is_script
    from stepscope.experiments.tune import TuneRequest

    target, minutes = str(orders["workload"]), orders["rules"]["tune_s"] / 60
    request = TuneRequest(target, minutes=minutes, threads=orders.get("threads"))
    if is_script(target):
        return request
    request = replace(request, batch=orders.get("batch"))
    return request if is_function(target) else replace(request, optimizer=orders["optimizer"], device=orders["device"])


def _numbers(tuning: Tuning) -> dict[str, Any]:
    """Return the recommended changes with step times and gain, those of the check at the end, where it was made."""
    from stepscope.experiments.tune.judge import gains
    from stepscope.experiments.tune.pair_statistics import FINAL

    best, final = tuning.best(), tuning.arms.get(FINAL)
    if best is None:
        return {}
    is_checked = final is not None and final.status == "measured" and final.changes == best.changes
    arm = final if final is not None and is_checked else best
    gain, low, high = gains(arm)
    as_is_s = statistics.median_high(arm.as_is) if arm.as_is else None
    entry: dict[str, Any] = {
        "changes": list(best.changes), "code": {name: tuning.known[name].code for name in best.changes},
        "checked": "no" if not is_checked else "yes" if low is not None and low > 0 else "not confirmed",
        "gain_percent": gain, "gain_percent_low": low, "gain_percent_high": high,
    }  # fmt: skip
    if as_is_s is not None and gain is not None:
        entry |= {"as_is_ms": 1e3 * as_is_s, "step_ms": 1e3 * as_is_s * (1 - gain / 100)}
    return {name: value for name, value in entry.items() if value is not None}


def changes_table(results: Results) -> pl.DataFrame:
    """A row for each setting that was tuned: what helps, step time as is and with it, the gain with its 95 % CI.

    changes: names joined by " + ", "none" where nothing helps, null where that is not known; `answer` says why.
    checked: whether the gain was measured again in fresh processes: yes, not confirmed, no.
    """
    rows = [_row(run["point"], run["tune"]) for run in results.runs if run.get("tune")]
    return pl.DataFrame(rows, schema=_SCHEMA).sort(*SETTING[:1], *SETTING[2:], "batch")


def _row(point: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    names = entry.get("changes")
    return {
        **{name: point[name] for name in SETTING},
        **{name: entry.get(name) for name in _NUMBERS},
        "changes": None if names is None else " + ".join(names) or "none",
        "checked": entry.get("checked"),
        "answer": entry.get("answer") or entry.get("failed"),
        "code": "\n".join((entry.get("code") or {}).values()) or None,
    }
