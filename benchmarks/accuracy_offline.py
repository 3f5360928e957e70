"""How right the energy attribution is on simulated sensors of known truth: `python -m benchmarks.accuracy_offline`.

Each row is a sensor and a number of steps, over several programs: energy-weighted error of the kinds by our method and
by the two simpler ways, share of the 95 % CIs that hold for kinds and for modules, share of the energy that is
called resolved within 10 % and how much of that is. `--write FILE` keeps the table as Markdown; `--cost` measures time
and memory instead.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.analysis.attribution.scores import Score, error_of, kinds, modules, score, truth
from tests.analysis.attribution.simulated import Device, Execution, Program, counted, execute, resnet_step, sampled

from stepscope.analysis.energy.attribution import FitOptions, attribute_energy
from stepscope.analysis.energy.rail_fits import energy_by_nearest_reading, energy_by_overlap
from stepscope.analysis.energy.readings import Readings, from_running_average

INA3221 = Device(0.0066, 0.0011, 0.038, 0.002, 0.001, 0.0003, 0.0, register=1 / 64)
Source = Callable[[Execution, int], Readings]
CLOCKED, UNCLOCKED = FitOptions(periodic=True), FitOptions()


@dataclass(frozen=True)
class Case:
    """One sensor over so many steps; `bar` is the highest error of kinds, None where "not resolved" is as good."""

    name: str
    steps: int
    source: Source
    bar: float | None
    options: FitOptions = UNCLOCKED
    exact: bool = False


@dataclass(frozen=True)
class Outcome:
    """Scores of one program: by kind, by module, and the errors of the simpler ways."""

    kind: Score
    module: Score
    nearest: float
    overlap: float
    closure: float
    locked: bool


def _gauge(**device: float) -> Source:
    return lambda run, seed: sampled(run, seed, replace(Device(), **device))


def _averaged(run: Execution, seed: int) -> Readings:
    raw = sampled(run, seed, INA3221)
    return from_running_average(raw.stamp, raw.watts, 1 / 64, 0.0066)


def _rapl(run: Execution, seed: int) -> Readings:
    return counted(run, seed)


def _nvml(run: Execution, seed: int) -> Readings:
    return counted(run, seed, update=0.1, step=1e-3, poll=0.01)


CASES = (
    Case("10 ms sensor", 100, _gauge(), 0.03, CLOCKED),
    Case("10 ms sensor", 500, _gauge(), 0.015, CLOCKED),
    Case("10 ms sensor, dithered", 100, _gauge(dither=0.5), 0.04),
    Case("1.1 ms conversion every 10 ms", 100, _gauge(width=0.0011), 0.03, CLOCKED),
    Case("10 ms behind an RC of 2 ms", 100, _gauge(rc=0.002), 0.04, CLOCKED),
    Case("INA3221, running average of 64, 38 mW", 100, _averaged, 0.04),
    Case("INA3221, running average of 64, 38 mW", 500, _averaged, 0.025),
    Case("counter that moves every 1 ms", 100, _rapl, 0.02, FitOptions(refresh=0.001)),
    Case("counter that moves every 100 ms", 100, _nvml, None, FitOptions(refresh=0.1)),
    Case("locked to the step", 100, _gauge(period_error=0.0), None, CLOCKED, exact=True),
    Case("locked to the step, dithered", 100, _gauge(period_error=0.0, dither=0.5), 0.04, exact=True),
)


def run_of(program: Program, case: Case, seed: int) -> Execution:
    """The program executed; without any jitter where the sampler is to lock to the step."""
    if case.exact:
        return execute(program, case.steps, seed, op_jitter=0.0, step_jitter=0.0, stalls=0.0)
    return execute(program, case.steps, seed)


def outcome(case: Case, seed: int) -> Outcome:
    """One program of a case."""
    run = run_of(resnet_step(seed, exact=case.exact), case, seed + 1)
    readings = case.source(run, seed)
    found = attribute_energy(run.timeline, readings, case.options)
    assert found is not None, "every case has readings enough"
    group = kinds(run)
    true = truth(run, group)
    simple = (
        energy_by_nearest_reading(run.timeline, readings),
        energy_by_overlap(run.timeline, readings, found.calibration.model.lag),
    )
    errors = [error_of(true, np.asarray(np.bincount(group, keys), dtype=np.float64)) for keys in simple]
    closure = abs(float(found.joules.sum()) / found.total.joules - 1)
    return Outcome(
        score(run, found, group), score(run, found, modules(run)), errors[0], errors[1], closure, found.phase.locked
    )


def line(case: Case, outcomes: list[Outcome]) -> str:
    """A row of the table."""
    kind, module = [one.kind for one in outcomes], [one.module for one in outcomes]
    resolved = sum(one.resolved for one in kind)
    held = [sum(one.inside for one in part) / sum(one.counted for one in part) for part in (kind, module)]
    error = float(np.mean([one.error for one in kind]))
    reached = "" if case.bar is None else f"{case.bar:.1%} " + ("reached" if error <= case.bar else "MISSED")
    cells = (
        case.name,
        str(case.steps),
        f"{error:.2%}",
        reached,
        f"{np.mean([one.error for one in module]):.2%}",
        f"{np.mean([one.nearest for one in outcomes]):.0%}",
        f"{np.mean([one.overlap for one in outcomes]):.0%}",
        f"{held[0]:.0%} / {held[1]:.0%}",
        f"{resolved / len(kind):.0%}",
        f"{sum(one.right for one in kind) / resolved:.0%}" if resolved else "-",
        f"{max(one.closure for one in outcomes):.1e}",
        f"{sum(one.locked for one in outcomes)} of {len(outcomes)}",
    )
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| sensor | steps | error of kinds | bar | of modules | nearest | overlap | intervals that hold, kinds / modules "
    "| resolved | of that true | closure | locked |\n" + "| --- " * 12 + "|"
)


def cost(steps: int, period: float) -> str:
    """Time and peak memory of the whole way: calibration, fit and intervals."""
    run = execute(resnet_step(0), steps, 1)
    readings = sampled(run, 0, Device(period=period, width=period))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    began, began_cpu = time.perf_counter(), time.process_time()
    attribute_energy(run.timeline, readings, CLOCKED)
    spent, spent_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    ops = len(run.timeline.lanes[0].t0)
    said = f"{spent:.1f} s ({spent_cpu:.1f} s of CPU), peak {peak:.0f} MB ({before:.0f} before)"
    return f"{ops:,} ops x {readings.count:,} samples: {said}"


def main() -> None:
    """Print the table, or what it costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="programs a case (default: 4)")
    parser.add_argument("--write", type=Path, help="keep the table as Markdown")
    parser.add_argument("--cost", type=int, metavar="M", help="so many million ops, and 100,000 samples for each")
    asked = parser.parse_args()
    if asked.cost:
        print(cost(2030 * asked.cost, 0.004))
        return
    rows = [HEAD]
    print(HEAD)
    for case in CASES:
        rows.append(line(case, [outcome(case, seed) for seed in range(asked.seeds)]))
        print(rows[-1], flush=True)
    if asked.write:
        asked.write.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
