"""`python -m benchmarks.forecast`: are the 95 % CIs of a forecast true? Nine trainings of 5,000 steps, 20 seeds each.

Offline: step times and joules are made here, with a truth of their own, and forecast from the first 100 and 500 steps
and from blocks of steps (20 of every 500, at random places). A throttle that has not come yet cannot be known: such
cells are counted apart. `--seeds N` for fewer, `--write FILE` keeps the table as Markdown. About a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepscope.analysis.projection import project_sum
from stepscope.arrays import Flags, Floats, Ints

STEPS, SEEDS = 5000, 20
_STEP_S, _POWER_W = 0.04, 8.0
_JITTER, _STALLS, _STALL_S, _READING_NOISE = 0.02, 0.01, 0.02, 0.03


@dataclass(frozen=True)
class Training:
    """Step times, s, and joules of each step (STEPS,); from which step on all that it does can have been seen."""

    time: Floats
    energy: Floats
    shown: int = 0


@dataclass(frozen=True)
class Cell:
    """One forecast beside the truth: quantity, from what it was made, error and half-width as shares of the truth."""

    plant: str
    view: str
    quantity: str
    known: bool
    error: float
    half: float
    held: bool


def _training(rng: np.random.Generator, slower: Floats | float, power: Floats | float, shown: int = 0) -> Training:
    time = _STEP_S * slower * (1 + _JITTER * rng.standard_normal(STEPS))
    time += _STALL_S * (rng.random(STEPS) < _STALLS)
    energy = time * _POWER_W * power * (1 + _READING_NOISE * rng.standard_normal(STEPS))
    return Training(time, energy, shown)


_AT = np.arange(STEPS, dtype=np.float64)


def _throttle(rng: np.random.Generator, least: int, most: int, slower: float, power: float) -> Training:
    since = int(rng.integers(least, most))
    on = since <= _AT
    return _training(rng, np.where(on, slower, 1.0), np.where(on, power, 1.0), since + 20)


def _toggling(rng: np.random.Generator) -> Training:
    high = (_AT + rng.integers(350)) // 175 % 2 == 1
    return _training(rng, np.where(high, 1.3, 1.0), np.where(high, 0.85, 1.0), 350)


def _repeating(rng: np.random.Generator) -> Training:
    high = (_AT + rng.integers(500)) % 500 < 250
    return _training(rng, np.where(high, 1.5, 1.0), 1.0, 500)


PLANTS: dict[str, Callable[[np.random.Generator], Training]] = {
    "stationary": lambda rng: _training(rng, 1.0, 1.0),
    "leakage, +15 % in 100 s": lambda rng: _training(rng, 1.0, 1 + 0.15 * (1 - np.exp(-_AT / 2500))),
    "slow-down, +25 % linearly": lambda rng: _training(rng, 1 + 0.25 * _AT / STEPS, 1.0),
    "throttle at step 40 to 90": lambda rng: _throttle(rng, 40, 90, 1.4, 0.75),
    "throttle at step 600 to 2000": lambda rng: _throttle(rng, 600, 2000, 1.4, 0.75),
    "power alone throttles, step 40 to 2000": lambda rng: _throttle(rng, 40, 2000, 1.0, 0.7),
    "clock toggles each 175 steps": _toggling,
    "half of every 500 steps 1.5x slower": _repeating,
    "warm-up, 6 % in 90 s": lambda rng: _training(
        rng, 1 + 0.02 * (1 - np.exp(-_AT / 750)), 1 + 0.06 * (1 - np.exp(-_AT / 2250))
    ),
}
MEASURED_STEPS, WATCH_EVERY = 20, 500  # of views that see 4 % of the steps alone


def watch_starts(count: int, seed: int = 0) -> Ints:
    """First steps of `count` blocks, one in every 500 steps: at the start, then at random places (count,).

    What repeats every 500 steps, or a part of them, is so seen at all its phases and not at one.
    """
    places = np.random.default_rng(seed).integers(0, WATCH_EVERY - MEASURED_STEPS + 1, max(count, 1))
    places[0] = 0
    return np.asarray(np.arange(max(count, 1)) * WATCH_EVERY + places, dtype=np.int64)[:count]


def watched_step_flags(numbers: Floats, seed: int = 0) -> Flags:
    """20 steps of every 500, at the places of `watch_starts`; numbers: (n,) of steps, counted from the first."""
    since = numbers - numbers[0]
    place = since - watch_starts(int(since[-1]) // WATCH_EVERY + 1, seed)[(since // WATCH_EVERY).astype(int)]
    chosen: Flags = (place >= 0) & (place < MEASURED_STEPS)
    return chosen


VIEWS = ("first 100", "first 500", "20 of every 500 to 2500", "20 of every 500 to the end")


def cells(plant: str, seed: int, views: tuple[str, ...] = VIEWS) -> Iterator[Cell]:
    """Every forecast of one training."""
    made = PLANTS[plant](np.random.default_rng([seed, *plant.encode()]))
    for view in views:
        if view.startswith("first"):
            at = _AT[: int(view.split()[1])]
        else:
            at = _AT[watched_step_flags(_AT, seed)]
            at = at[at < 2500] if view.endswith("2500") else at
        for quantity, values in (("time", made.time), ("energy", made.energy)):
            said, true = project_sum(at, values[at.astype(int)], STEPS), float(values.sum())
            known = made.shown <= at[-1]
            error, half = said.total / true - 1, (said.high - said.low) / 2 / true
            yield Cell(plant, view, quantity, known, error, half, said.low <= true <= said.high)


def verdict(found: list[Cell]) -> dict[str, float]:
    """Return the share of CIs that hold from 500 steps on; half-width and error, stationary, after 100."""
    later = [cell for cell in found if cell.view != "first 100" and cell.known]
    at_once = [cell for cell in found if cell.view == "first 100" and cell.plant == "stationary"]
    return {
        "held": float(np.mean([cell.held for cell in later])),
        "half": float(np.median([cell.half for cell in at_once])),
        "half_90": float(np.quantile([cell.half for cell in at_once], 0.9)),
        "error": max(abs(cell.error) for cell in at_once),
    }


def table(found: list[Cell]) -> str:
    """A row a training: of each view how far off, how wide and how often it held, over time and energy."""
    lines = ["| training | " + " | ".join(VIEWS) + " |", "| --- |" + " --- |" * len(VIEWS)]
    for plant in dict.fromkeys(cell.plant for cell in found):
        row = []
        for view in VIEWS:
            here = [cell for cell in found if (cell.plant, cell.view) == (plant, view)]
            known = [cell for cell in here if cell.known]
            if not known:
                row.append("not yet to be seen")
                continue
            off = float(np.median([abs(cell.error) for cell in known]))
            half = float(np.median([cell.half for cell in known]))
            held = sum(cell.held for cell in known)
            row.append(f"{off:.1%} off, +-{half:.1%}, holds in {held}/{len(known)}")
        lines.append(f"| {plant} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    found = [cell for plant in PLANTS for seed in range(asked.seeds) for cell in cells(plant, seed)]
    shown, said = table(found), verdict(found)
    summary = (
        f"95 % CIs from 500 steps on, of what can have been seen: {said['held']:.1%} hold (bar: 90 to 99 %). "
        f"Stationary, from 100 steps: +-{said['half']:.1%} (median; 90 % below {said['half_90']:.1%}), "
        f"off by at most {said['error']:.1%} (bar: 5 %)."
    )
    print(shown, "", summary, sep="\n")
    if asked.write:
        asked.write.write_text(f"{shown}\n\n{summary}\n", encoding="utf-8")
    return 0 if 0.9 <= said["held"] <= 0.99 and max(said["half"], said["error"]) <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
