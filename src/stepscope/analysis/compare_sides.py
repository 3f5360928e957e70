"""What a comparison is between: runs, repeats of a run, sweeps and folders of runs, matched by their setting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.analysis.run import Run
from stepscope.analysis.steady import steady_steps
from stepscope.errors import RunDamaged, RunError, RunNotFound, UsageError
from stepscope.which_run import find_run

FEWEST, MOST = 2, 10
_ALWAYS = ("workload", "batch", "optimizer", "precision")
_WHERE_SEVERAL = ("threads", "device")  # boards differ in them, so they tell settings apart only within one operand
_MOST_NOTES = 4


@dataclass(frozen=True)
class Operand:
    """One of the things that are compared, with all its runs; `left_out` says which runs do not count and why."""

    name: str
    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """One setting, with the runs of each operand in it: repeats of each other. `label` is "" where nothing differs."""

    label: str
    sides: tuple[tuple[Run, ...], ...]


def operand(given: str | Path | Run, attribution: str = "fit") -> Operand:
    """A run, a folder of a sweep, or a folder of runs; RunNotFound where there is none, RunDamaged where none counts.

    Of several runs those that ended well and have steps after the warm-up count.
    """
    if isinstance(given, Run):
        return Operand(given.id, (_usable(given),))
    path = find_run(given)
    if (path / "run.json").exists() or not path.is_dir():
        run = Run(path, attribution)
        return Operand(run.id, (_usable(run),))
    return _of_folder(path, attribution)


def matched(operands: Sequence[Operand]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """The settings that all operands have, and a sentence for each that some of them lack.

    Operands with one setting each are compared whatever these are: that they differ may be the question.
    """
    if not FEWEST <= len(operands) <= MOST:
        raise UsageError(f"{len(operands)} to compare: {FEWEST} to {MOST} are possible", "name two runs or more")
    axes = (*_ALWAYS, *(axis for axis in _WHERE_SEVERAL if any(_varies(one, axis) for one in operands)))
    groups = [_grouped(one.runs, axes) for one in operands]
    if all(len(group) == 1 for group in groups):
        return (Setting("", tuple(next(iter(group.values())) for group in groups)),), _left_out(operands)
    common = [key for key in groups[0] if all(key in group for group in groups[1:])]
    if not common:
        raise UsageError(
            "no setting (workload, batch, optimizer, precision) is in all of them", "compare single runs of theirs"
        )
    settings = tuple(Setting(_label(key), tuple(group[key] for group in groups)) for key in common)
    return settings, (*_left_out(operands), *_unmatched(operands, groups, set(common)))


def setting_of(run: Run) -> dict[str, Any]:
    """What was trained and how: workload, batch, optimizer, precision, threads, device."""
    workload = run.meta.get("workload")
    about = workload if isinstance(workload, dict) else {"name": workload}
    own = {name: about.get(name) for name in ("optimizer", "precision", "device")}
    return {
        "workload": about.get("name") or run.id,
        "batch": about.get("batch_size"),
        **own,
        "threads": run.meta.get("threads"),
    }


def differing(first: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """What two runs do not have in common of setting, board, data and simulated sensors: name to (first, other)."""
    pairs = {name: (value, setting_of(other)[name]) for name, value in setting_of(first).items()}
    pairs["board"] = (_board(first), _board(other))
    pairs["data"] = (_data(first), _data(other))
    pairs["simulated"] = (first.simulated, other.simulated)
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _board(run: Run) -> object:
    stated = run.device.get("board") or run.device.get("cpu")
    return stated.get("name") if isinstance(stated, dict) else stated


def _data(run: Run) -> object:
    workload = run.meta.get("workload")
    data = workload.get("data") if isinstance(workload, dict) else None
    return (data.get("name"), data.get("sha256")) if isinstance(data, dict) else None


def _usable(run: Run) -> Run:
    if steady_steps(run).is_empty():
        raise RunDamaged(f"'{run.id}' has no step after its warm-up: there is nothing to compare", "train more steps")
    return run


def _of_folder(path: Path, attribution: str) -> Operand:
    runs, left_out = [], []
    for folder in _run_folders(path):
        try:
            run = _usable(Run(folder, attribution))
        except RunError as error:
            left_out.append(str(error))
            continue
        if run.status == "ok":
            runs.append(run)
        else:
            left_out.append(f"'{run.id}' ended as {run.status}")
    if not runs:
        said = f": {left_out[0]}" if left_out else ""
        raise RunNotFound(f"'{path}' holds no run that can be compared{said}", "give a run folder, or a folder of runs")
    return Operand(path.resolve().name, tuple(runs), tuple(left_out))


def _run_folders(path: Path) -> Iterator[Path]:
    """Those of a sweep lie in runs/<point>/, others in the folder itself."""
    patterns = ("runs/*/run.json", "runs/*/*/run.json") if (path / "sweep.json").is_file() else ("*/run.json",)
    for pattern in patterns:
        yield from (header.parent for header in sorted(path.glob(pattern)))


def _varies(one: Operand, axis: str) -> bool:
    return len({setting_of(run)[axis] for run in one.runs}) > 1


def _grouped(runs: Iterable[Run], axes: Sequence[str]) -> dict[tuple[Any, ...], tuple[Run, ...]]:
    groups: dict[tuple[Any, ...], tuple[Run, ...]] = {}
    for run in runs:
        about = setting_of(run)
        key = tuple(about[axis] for axis in axes)
        groups[key] = (*groups.get(key, ()), run)
    return groups


def _label(key: tuple[Any, ...]) -> str:
    name, batch, *rest = key
    return " ".join(str(part) for part in (name, *([f"batch {batch}"] if batch is not None else []), *rest) if part)


def _left_out(operands: Sequence[Operand]) -> tuple[str, ...]:
    said = []
    for one in operands:
        more = [f"{one.name}: {len(one.left_out) - _MOST_NOTES} more runs left out"]
        said += [f"{one.name}: left out: {why}" for why in one.left_out[:_MOST_NOTES]]
        said += more if len(one.left_out) > _MOST_NOTES else []
    return tuple(said)


def _unmatched(
    operands: Sequence[Operand], groups: Sequence[dict[tuple[Any, ...], tuple[Run, ...]]], common: set[tuple[Any, ...]]
) -> Iterator[str]:
    for one, group in zip(operands, groups, strict=True):
        alone = [_label(key) for key in group if key not in common]
        if alone:
            named = ", ".join(alone[:_MOST_NOTES]) + (", ..." if len(alone) > _MOST_NOTES else "")
            yield f"{one.name}: {len(alone)} settings are not in all of them: {named}"
