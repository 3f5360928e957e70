"""`python -m benchmarks.energy`: energy through the real sampler on simulated boards, against what was really spent.

A network really trains beside each board; the sampler reads the board's files as it would a real one's. `--seconds`
sets the length of each measurement, `--faults` adds runs with faults, `--write FILE` keeps the table as Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from stepscope import simulate
from stepscope.analysis.energy.power_sources import PowerSource, power_sources
from stepscope.record.sampler.process import start_sampler
from stepscope.runfolder import RunReader, RunWriter
from stepscope.simulate.boards import Fault
from stepscope.simulate.power import Truth

BAR = 0.01
SETTLE_S = 3.0  # two refreshes of a battery's gauge


@dataclass(frozen=True)
class Case:
    """One board with the rail whose energy is compared."""

    title: str
    board: str
    rail: str
    options: dict[str, Any] = field(default_factory=dict)
    period_ms: int = 10


CASES = (
    Case("RAPL, wraps every 50 J", "laptop-rapl", "package-0", {"counter_range_uj": 50_000_000}),
    Case("INA3221, running average of 64, 38 mW steps", "jetson-tx2", "VDD_IN", {"computed": False}),
    Case("INA3221, one conversion of 1.1 ms in 6.6 ms", "jetson-orin-nano", "VDD_IN", {"computed": False}),
    Case("energy counter in steps of 100 ms", "gpu-counter", "card"),
    Case("battery, refreshed every 1.4 s", "laptop-battery", "BAT0"),
)


@dataclass(frozen=True)
class Row:
    """Measured and true energy of the covered part of the same span, J."""

    title: str
    measured_j: float
    true_j: float
    missing_s: float
    lost_marks: int

    @property
    def error(self) -> float:
        return self.measured_j / self.true_j - 1


def small_training() -> tuple[nn.Module, Callable[[], None]]:
    """A convolutional network with a step of a few milliseconds."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return model, step


def measure(case: Case, seconds: float, settle_s: float = SETTLE_S, seed: int = 0) -> Row:
    """Train beside the board for so long, and compare."""
    model, step = small_training()
    with tempfile.TemporaryDirectory() as out:
        writer = RunWriter.create(out, case.board)
        with simulate.start(case.board, model, seed, **case.options) as board:
            sampler = start_sampler(writer.path, case.period_ms * 1_000_000, root=board.root)
            train(step, settle_s)
            t0_ns = time.monotonic_ns()
            train(step, seconds)
            t1_ns = time.monotonic_ns()
            train(step, 0.2)
            sampler.stop()
        writer.close("ok")
        return compare(case, RunReader(writer.path), board.truth(), t0_ns, t1_ns)


def train(step: Callable[[], None], seconds: float) -> None:
    """Steps for so long, with a little pause now and then, as a data loader makes."""
    until, pauses = time.monotonic() + seconds, np.random.default_rng(0)
    while time.monotonic() < until:
        step()
        if pauses.random() < 0.1:
            time.sleep(pauses.exponential(0.01))


def compare(case: Case, run: RunReader, truth: Truth, t0_ns: int, t1_ns: int) -> Row:
    """Measured energy of the span, and the true one of what the measurement covers."""
    growth = source_of(case, run).growth
    inside = np.clip(growth.t_ns, t0_ns, t1_ns).astype(np.int64)
    spans = np.stack([inside[:-1], inside[1:]])[:, ~growth.gap]
    measured_j = float(np.diff(growth.at(growth.known_growth, np.array([t0_ns, t1_ns], dtype=np.float64)))[0])
    true_j = float(truth.energy_between(case.rail, spans[0], spans[1]).sum())
    missing_s = ((t1_ns - t0_ns) - float(np.diff(spans, axis=0).sum())) / 1e9
    return Row(case.title, measured_j, true_j, missing_s, truth.lost_marks)


def source_of(case: Case, run: RunReader) -> PowerSource:
    """The channel of the case's rail."""
    found = {source.rail: source for source in power_sources(run)}
    if case.rail not in found:
        raise SystemExit(f"{case.board}: no channel for {case.rail}, only {sorted(map(str, found))}")
    return found[case.rail]


def with_faults(seconds: float) -> list[Case]:
    """Each fault in the middle of the measurement, on the boards that it can happen to."""
    at_s, for_s = SETTLE_S + seconds / 3, seconds / 6
    rapl, tx2 = CASES[0], CASES[1]
    wanted = [(rapl, "stuck"), (rapl, "lost"), (rapl, "empty"), (rapl, "garbage"), (rapl, "reset")]
    wanted += [(tx2, "lost"), (tx2, "garbage"), (tx2, "renumbered"), (CASES[3], "renumbered"), (CASES[4], "plugged")]
    return [
        Case(
            f"{case.title}: {kind}",
            case.board,
            case.rail,
            {**case.options, "faults": (Fault(kind, at_s, for_s),)},  # type: ignore[arg-type]
        )
        for case, kind in wanted
    ]


def markdown(rows: Sequence[Row], seconds: float) -> str:
    """The table."""
    lines = [
        f"Energy over {seconds:g} s of a real training beside a simulated board, read by the real sampler.",
        "",
        "| sensor | measured, J | true, J | error | not covered, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = f"{row.measured_j:.2f} | {row.true_j:.2f} | {row.error:+.2%} | {row.missing_s:.2f}"
        lines.append(f"| {row.title} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--faults", action="store_true")
    arguments.add_argument("--write", type=Path)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for case in (*CASES, *(with_faults(options.seconds) if options.faults else ())):
        row = measure(case, options.seconds)
        rows.append(row)
        verdict = "reached" if abs(row.error) <= BAR else "MISSED"
        joules = f"{row.measured_j:9.2f} J, true {row.true_j:9.2f} J"
        print(f"{row.title:<52} {joules} {row.error:+8.2%} {verdict}, {row.missing_s:.2f} s not covered", flush=True)
        if row.lost_marks:
            print(f"  {row.lost_marks} marks were lost: this machine is too busy for this simulation")
    if options.write:
        options.write.write_text(f"# Energy on simulated boards\n\n{markdown(rows, options.seconds)}")


if __name__ == "__main__":
    main()
