"""A power model learned from runs that measured power, and how far off it is for a run that it has not seen.

A plug or a meter that is there for a day teaches what the device takes; later runs without it are estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special  # type: ignore[import-untyped]
from scipy.optimize import nnls  # type: ignore[import-untyped]

from stepscope.analysis.energy.measured_energy import energy_over, idle_stretch, sum_energies, training_stretches
from stepscope.analysis.energy.power_model import (
    COMPONENTS,
    ComponentPower,
    PowerModel,
    mean_use,
    parse_power_model,
    relative_use,
)
from stepscope.analysis.energy.rails import RailTree, rail_tree
from stepscope.arrays import Floats
from stepscope.errors import UsageError
from stepscope.runfolder import RunReader

FEWEST_RUNS = 3  # below, leaving one out leaves nothing to be compared
_GPU_RUNS = 4  # a second slope needs one more
_SAME_DEVICE = ("board", "cpu", "machine", "power_mode")
_HINT = (
    f"train {FEWEST_RUNS} different workloads or batch sizes with a plug or meter (--plug, --meter-command), and name "
    "their runs: --power-model runs/a,runs/b,runs/c"
)


@dataclass(frozen=True)
class _UseAndPower:
    """Mean use of each component (c,), and mean power of the device, W."""

    use: Floats
    watts: float


@dataclass(frozen=True)
class _Measured:
    """One run: its training, and where there was such a time, the device at rest before it.

    what: tells its training from others; rails: names of what was measured.
    """

    training: _UseAndPower
    rest: _UseAndPower | None
    what: str
    rails: str

    @property
    def stretches(self) -> list[_UseAndPower]:
        return [self.training, *([self.rest] if self.rest else [])]


def learn_power_model(paths: Sequence[Path]) -> PowerModel:
    """Return the power model of the device that these runs measured, with the CI of a run that is none of them.

    Each run is predicted by a model of the other trainings; the 95 % CI is Student's of these errors. UsageError where
    they are too few, of several devices or rails, simulated, or without a measured total.
    """
    readers = [RunReader(path) for path in paths]
    trainings = len({_training_of(reader) for reader in readers})
    if trainings < FEWEST_RUNS:
        repeated = f", not {len(paths)}" if trainings == len(paths) else f"; of these {len(paths)}, {trainings} differ"
        raise UsageError(f"a power model is learned from at least {FEWEST_RUNS} different trainings{repeated}", _HINT)
    devices = {tuple(str(reader.device.get(name)) for name in _SAME_DEVICE) for reader in readers}
    if len(devices) > 1:
        raise UsageError("these runs are of different devices", "name runs of the device that is to be estimated")
    gpu = trainings >= _GPU_RUNS and all(relative_use(reader, "gpu") is not None for reader in readers)
    components = COMPONENTS if gpu else COMPONENTS[:1]
    runs = [_measure_run(reader, components) for reader in readers]
    if len(rails := dict.fromkeys(run.rails for run in runs)) > 1:
        raise UsageError(
            f"these runs measured different things: {'; '.join(rails)}",
            "name runs that were measured by the same sensor",
        )
    errors = np.array([_leave_one_out_error(runs, place) for place in range(len(runs))])
    share = float(special.stdtrit(trainings - 1, 0.975) * np.sqrt(np.mean(errors**2)))
    if not 0 < share <= 1:
        raise UsageError(
            f"each of these runs is predicted by the others to +-{share:.0%} only: that is no model",
            "power does not follow the use of processors here; measure it",
        )
    watts = _fit_watts([stretch for run in runs for stretch in run.stretches])
    idle = [float(watts[0]), 0.0]  # what the device takes at rest is told of the CPU
    busy = [(name, idle[place], idle[place] + float(watts[1 + place])) for place, name in enumerate(components)]
    parts = tuple(ComponentPower(*part) for part in busy if part[-1] > 0)
    # As later runs are given it; what a GPU takes is in the watts, whether or not it has a slope of its own.
    use_ranges = (_use_range(readers, component) for component in COMPONENTS)
    return parse_power_model(str(PowerModel(parts, share, *use_ranges)))


def _use_range(readers: Sequence[RunReader], component: str) -> tuple[float, float] | None:
    """Least and most use of a component in the training of these runs; None where it had none or some did not say."""
    use = [mean_use(reader, component, training_stretches(reader)) for reader in readers]
    shares = [share for share in use if share is not None]
    return (min(shares), max(shares)) if len(shares) == len(use) and max(shares) > 0 else None


def _training_of(reader: RunReader) -> str:
    """Return what tells a training from others: repeating one shows nothing of how well another is predicted."""
    workload = reader.meta.get("workload") or {}
    return str([workload.get("name"), workload.get("batch_size"), reader.meta.get("argv")])


def _measure_run(reader: RunReader, components: Sequence[str]) -> _Measured:
    if reader.meta.get("simulated"):
        raise UsageError(f"{reader.path.name} has simulated sensors: nothing of this device is learned there", _HINT)
    tree, spans = rail_tree(reader), training_stretches(reader)
    training = _use_and_power_over(reader, tree, spans, components) if len(spans) else None
    if training is None:
        raise UsageError(f"{reader.path.name} has no measured power of the whole device in its steps", _HINT)
    idle = idle_stretch(reader, [line.best for line in tree.total or ()])
    rest = _use_and_power_over(reader, tree, idle, components) if len(idle) else None
    return _Measured(training, rest, _training_of(reader), " + ".join(sorted(line.name for line in tree.total or ())))


def _use_and_power_over(
    reader: RunReader, tree: RailTree, spans: Floats, components: Sequence[str]
) -> _UseAndPower | None:
    watts = sum_energies([energy_over(line.best, spans) for line in tree.total or ()]).watts
    used = [mean_use(reader, component, spans) for component in components]
    return _UseAndPower(np.array(used, dtype=np.float64), watts) if watts and None not in used else None


def _fit_watts(stretches: Sequence[_UseAndPower]) -> Floats:
    """Watts of the device at rest, and what each component adds when it is busy, (1 + c,), none below 0."""
    measured = np.array([stretch.watts for stretch in stretches])
    terms = np.array([[1.0, *stretch.use] for stretch in stretches])
    return np.asarray(nnls(terms / measured[:, None], np.ones(len(measured)))[0])  # errors are shares of the power


def _leave_one_out_error(runs: Sequence[_Measured], place: int) -> float:
    """Return by what share the training of a run differs from what the other trainings predict of it."""
    others = [stretch for run in runs if run.what != runs[place].what for stretch in run.stretches]
    held_out = runs[place].training
    predicted = float(_fit_watts(others) @ np.array([1.0, *held_out.use]))
    return held_out.watts / predicted - 1 if predicted > 0 else np.inf
