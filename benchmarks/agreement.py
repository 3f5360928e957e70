"""Do the numbers of a run agree? `python -m benchmarks.agreement [--runs FOLDER ...] [--only NAME] [--write PAGE]`.

Each run is read as a user reads it, by `stepscope report --json`, the text report and `stepscope.Run`: phases, layers
and operators add up to the headline; samples a second are those achieved; J a step times steps a second are watts;
nothing lies outside physics; one confidence level. Without `--runs`, workloads on a simulated board and short loops
are profiled first.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import stepscope
from benchmarks.loops import LOOPS
from benchmarks.profiled import ROOT, RunFailedError, answer, finished, keep, run, start, workplace

WORKLOADS = (
    "lenet",
    "resnet8-c32",
    "char-gpt-64",
    "char-lstm-80",
    "ds-cnn-kws",
    "autoencoder-640",
    "activity-gru-6x100",
)
_BAR = 0.02  # of the headline
_STEPS = 60
_FEWEST_FOR_A_CI = 6  # of a median


@dataclass(frozen=True)
class Check:
    """One thing that must agree; `error` is relative, or 1 where something is impossible."""

    what: str
    error: float
    bar: float
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.error <= self.bar


def checks(path: Path) -> Iterator[Check]:
    """Yield what must agree in a finished run."""
    report = answer("report", str(path))
    opened = stepscope.Run(path)
    metrics = pl.DataFrame([*report["metrics"], *report["overhead"]], infer_schema_length=None)
    headline = _value(metrics, "step_time")
    if headline is None:
        yield Check("headline", 1.0, 0.0, "no step time is stated")
        return
    yield from _sums(opened, headline)
    yield from _throughput(opened, metrics)
    yield from _energy(metrics)
    yield from _physics(metrics, len(opened.device.get("cores", ())) or len(_cores(metrics)))
    levels = set(re.findall(r"(\d\d(?:\.\d)?) ?% (?:CI|confidence)", stepscope.text(opened)))
    yield Check("one confidence level", float(len(levels) > 1), 0.0, " and ".join(sorted(levels)))


def _sums(opened: Any, headline: float) -> Iterator[Check]:
    phases, layers, operators = opened.phases(), opened.modules(), opened.operators()
    outside = phases.filter(pl.col("phase").str.starts_with("("))["ns"].sum()
    if not operators["name"].str.starts_with("(").any():
        yield _adds_up("operators", operators["total_ns"].sum() + outside, headline)
    else:
        yield _adds_up("operators", operators["total_ns"].sum(), headline)
    yield _adds_up("phases", phases["ns"].sum(), headline)
    yield _adds_up("layers", layers["total_ns"].sum(), headline)
    for name, frame in (("phases", phases), ("layers", layers), ("operators", operators)):
        shares = frame["share"].drop_nulls()
        inside = len(shares) == 0 or (shares.min() >= 0 and shares.max() <= 1 + 1e-9)
        yield Check(f"shares of {name} within 0 and 1", float(not inside), 0.0, f"{shares.min()} to {shares.max()}")
        missing = frame.filter(
            pl.col("low_ns").is_null() & (pl.col("total_ns" if "total_ns" in frame.columns else "ns") > 0)
        )
        if opened.steps.filter(pl.col("recorded"))["step"].n_unique() - opened.warmup_steps < _FEWEST_FOR_A_CI:
            continue
        yield Check(
            f"{name} with a CI", len(missing) / max(1, len(frame)), 0.0, f"{len(missing)} of {len(frame)} without"
        )
    ranked = operators.sort("share", descending=True, nulls_last=True).head(6)["total_ns"].to_list()
    yield Check("operators ranked by what is printed", float(ranked != sorted(ranked, reverse=True)), 0.0)


def _adds_up(name: str, total: float | None, headline: float) -> Check:
    if not total:
        return Check(f"sum of {name}", 1.0, _BAR, "nothing is stated")
    return Check(f"sum of {name}", abs(total / headline - 1), _BAR, f"{total / 1e6:.3f} ms of {headline / 1e6:.3f} ms")


def _throughput(opened: Any, metrics: pl.DataFrame) -> Iterator[Check]:
    stated = _value(metrics, "throughput")
    steps = opened.steps.filter(pl.col("step") >= opened.warmup_steps)
    if stated is None or steps["samples"].null_count():
        return
    # Over the time of steps: between them lie our pauses and evaluation. Profiled steps are slower, also those in part.
    in_part = [event["step"] for event in opened.events if event["kind"] == "step-profiled-in-part"]
    bare = steps.filter(~pl.col("recorded"), ~pl.col("step").is_in(in_part))
    rates = [
        timed["samples"].sum() / ((timed["t1_ns"] - timed["t0_ns"]).sum() / 1e9)
        for timed in (steps, bare)
        if len(timed)
    ]
    error = min(abs(stated / rate - 1) for rate in rates)
    note = f"{stated:.1f}/s of {' or '.join(f'{rate:.1f}' for rate in rates)}/s"
    yield Check("samples/s are those achieved", error, _BAR, note)


def _energy(metrics: pl.DataFrame) -> Iterator[Check]:
    steps_per_s = _value(metrics, "step_rate")
    for kind in ("", "simulated_", "estimated_"):
        energy, power = _value(metrics, f"{kind}energy_per_step"), _value(metrics, f"{kind}mean_power")
        if energy is not None and power is not None and steps_per_s is not None:
            watts = energy * steps_per_s
            yield Check("J a step x steps/s = W", abs(watts / power - 1), _BAR, f"{watts:.3f} W of {power:.3f} W")


def _physics(metrics: pl.DataFrame, cores: int) -> Iterator[Check]:
    wrong = []
    for row in metrics.iter_rows(named=True):
        values = [row[name] for name in ("low", "value", "high") if row[name] is not None]
        limit = {"1": 1.0, "cores": float(cores)}.get(row["unit"], float("inf"))
        if row["metric"] == "recorded_step_overhead_share":
            limit = float("inf")  # a profiled step may take several times as long
        if values != sorted(values):
            wrong.append(f"{row['metric']} {row['scope']}: value outside its CI {values}")
        if min(values, default=0.0) < 0 or max(values, default=0.0) > limit * (1 + 1e-9):
            wrong.append(f"{row['metric']} {row['scope']}: {values} {row['unit']}")
    yield Check("nothing outside physics", float(bool(wrong)), 0.0, "; ".join(wrong))


def _value(metrics: pl.DataFrame, name: str) -> float | None:
    """Return a metric of the whole run, the first of its scopes."""
    values = metrics.filter(pl.col("metric") == name)["value"].drop_nulls()
    return float(values[0]) if len(values) else None


def _cores(metrics: pl.DataFrame) -> list[str]:
    scopes = metrics.filter(pl.col("metric") == "core_utilisation")["scope"].unique()
    return [str(scope) for scope in scopes]


def profiled(name: str, seed: int, folder: Path) -> Path:
    """Profile a loop, or a workload on a simulated board; return the run folder. Raises RunFailedError."""
    if name in LOOPS:
        return run(ROOT / "benchmarks" / "loops.py", [name, str(seed)], folder)[0]
    options = ["--steps", str(_STEPS), "--simulate", "laptop-rapl"]
    return finished(start(name, [], folder, options=options), folder)[0]


def table(results: dict[str, list[Check]]) -> str:
    """Return what holds as Markdown: a row a check, with the runs in which it does not."""
    lines = ["| what must agree | holds in | worst | where it does not |", "| --- | --- | --- | --- |"]
    for what in dict.fromkeys(check.what for found in results.values() for check in found):
        rows = {name: check for name, found in results.items() for check in found if check.what == what}
        broken = [f"{name}: {check.note or f'{check.error:.1%}'}" for name, check in rows.items() if not check.holds]
        worst = max(check.error for check in rows.values())
        lines.append(f"| {what} | {len(rows) - len(broken)} of {len(rows)} | {worst:.1%} | {'; '.join(broken)[:400]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", type=Path, help="finished run folders to look at instead")
    parser.add_argument("--only", nargs="+", choices=[*LOOPS, *WORKLOADS], default=[*LOOPS, *WORKLOADS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for all checks")
    parser.add_argument("--write", type=Path, help="page that keeps the table")
    options = parser.parse_args()
    results: dict[str, list[Check]] = {}
    if options.runs:
        results = {path.name: list(checks(path)) for path in options.runs}
    else:
        for name in options.only:
            with workplace() as folder:
                try:
                    results[name] = list(checks(profiled(name, options.seed, Path(folder))))
                except RunFailedError as error:
                    results[name] = [Check("a run with a report", 1.0, 0.0, str(error))]
            broken = [check for check in results[name] if not check.holds]
            said = "; ".join(f"{check.what} ({check.note or f'{check.error:.1%}'})" for check in broken)
            print(f"{name:<18} {said or 'all agree'}", flush=True)
    print(f"\n{table(results)}")
    if options.json:
        plain = {name: [vars(check) for check in found] for name, found in results.items()}
        options.json.write_text(json.dumps(plain, indent=1))
    if options.write:
        keep(options.write, "agreement", "Agreement", table(results))


if __name__ == "__main__":
    main()
