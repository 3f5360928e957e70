"""`python -m benchmarks.hostile`: energy of plants that the estimator was not built for, against their truth.

Each row is a plant behind a sensor, with several seeds; `--list` names them. `--rows TEXT` takes those whose title or
group holds the text (several: all of them), `--cells N` a grid of sensor x step length, `--real-path` whole trainings,
`--write FILE` puts the tables between the marks of a page, `--kept FILE` keeps each score and goes on from there.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import pickle
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import stepscope
from benchmarks.hostile import folder, structures
from benchmarks.hostile.folder import Score, Sums, together
from benchmarks.hostile.plant import Plant, as_shown, build
from benchmarks.hostile.rows import ROWS, Row, cells
from benchmarks.hostile.sensors import MISSTATED, read

INSIDE, TRUE = 0.85, 0.95  # the least energy inside its interval, and truly within 10 % of what is called so


def plant_of(row: Row, seed: int) -> Plant:
    """The plant of a row with this seed."""
    name = row.structures[seed % len(row.structures)]
    step = structures.of_name(name, seed)
    return build(structures.on_gpu(step) if row.gpu else step, row.law, row.pace, seed)


def measure(row: Row, seed: int) -> Score:
    """Run one plant, let the product read it, and compare; a product that breaks down has a score too."""
    plant, faults = plant_of(row, seed), row.faults
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = folder.write(plant, row.sensor, read(plant, row.sensor, faults, seed), Path(out))
        try:
            shown = as_shown(plant, faults.gain, faults.offset_w, faults.warming)
            return folder.score(stepscope.Run(path), shown, plant.truth["whole"][""])
        except Exception as error:  # whatever it is: the row has failed
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"broke down: {error!r} at {Path(place.filename).name}:{place.lineno}"
            return Score(None, None, math.nan, None, None, math.nan, said, said)


@dataclass(frozen=True)
class Result:
    """All seeds of a row."""

    row: Row
    scores: Sequence[Score]

    @property
    def kinds(self) -> Sums:
        return together([score.kinds for score in self.scores if score.kinds is not None])

    @property
    def modules(self) -> Sums:
        return together([score.modules for score in self.scores if score.modules is not None])

    @property
    def failures(self) -> list[str]:
        """What misses a bar."""
        found = [score.refused for score in self.scores if (score.refused or "").startswith("broke down")]
        for name, sums in (("kinds", self.kinds), ("modules", self.modules)):
            if sums.stated and sums.inside < INSIDE * sums.stated:
                found.append(f"{name}: {sums.inside / sums.stated:.0%} inside")
            if sums.called and sums.true < TRUE * sums.called:
                found.append(f"{name}: {sums.true / sums.called:.0%} of the called true")
            if sums.false_10 or sums.false_30:
                found.append(f"{name}: {sums.false_10} + {sums.false_30} claims more than 30 % off")
        if self.row.bar is not None and self.error_that_counts > self.row.bar:
            found.append(f"error above {self.row.bar:.1%}")
        return [str(one) for one in found]

    @property
    def error_that_counts(self) -> float:
        """Error by kind that the row's own bar is for."""
        parts = [score.kinds for score in self.scores if score.kinds is not None]
        if self.row.bar_if_called:
            parts = [part for part in parts if together([part]).called > 0]
        return together(parts).error if parts else 0.0

    def cells(self) -> list[str]:
        """The row of the table."""
        kinds, modules = self.kinds, self.modules
        totals, meters = (
            [held for score in self.scores if (held := getattr(score, name)) is not None]
            for name in ("whole_holds", "meter_holds")
        )
        unscored = sum(score.kinds is None for score in self.scores)
        return [
            self.row.title,
            _percent(kinds.error, 1.0) + (f" ({unscored} of {len(self.scores)} runs without)" if unscored else ""),
            _percent(kinds.inside, kinds.stated),
            _percent(modules.inside, modules.stated),
            _percent(kinds.called, kinds.energy) if kinds.energy else "nothing",
            f"{_percent(kinds.true, kinds.called)} / {_percent(modules.true, modules.called)}",
            _percent(kinds.worst, 1.0) if kinds.called else "-",
            f"{sum(totals)}/{len(totals)}, {sum(meters)}/{len(meters)}",
            "reached" if not self.failures else "MISSED: " + "; ".join(self.failures),
        ]


HEAD = (
    "plant",
    "error by kind",
    "kinds: energy in its 90 % CI",
    "modules: the same",
    "called within 10 %",
    "of that true, kinds / modules",
    "worst that is called so",
    "totals in their CI, in the meter's",
    "bars",
)


def _percent(part: float, whole: float) -> str:
    if not whole or math.isnan(part):
        return "-"
    return f"{part / whole:.1%}" if part < 0.0995 * whole else f"{part / whole:.0%}"


_TASKS: list[tuple[Row, int]] = []  # for forked workers, which find a row by its place: its functions cannot travel


def _measured(place: int) -> Score:
    return measure(*_TASKS[place])


def in_parallel(tasks: Sequence[tuple[Row, int]], jobs: int, kept: Path | None = None) -> Iterator[Score]:
    """Scores in the order of the tasks; those that `kept` has are not measured again, and new ones go there."""
    known = _kept_scores(kept)
    _TASKS[:] = [(row, seed) for row, seed in tasks if (row.title, seed) not in known]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        measured = pool.map(_measured, range(len(_TASKS)))
        for row, seed in tasks:
            if (row.title, seed) not in known:
                known[row.title, seed] = next(measured)
                if kept is not None:
                    with kept.open("ab") as file:
                        pickle.dump(((row.title, seed), known[row.title, seed]), file)
            yield known[row.title, seed]


def _kept_scores(kept: Path | None) -> dict[tuple[str, int], Score]:
    """Return the scores in a file, by title and seed; a last one that was cut off is cut away."""
    known: dict[tuple[str, int], Score] = {}
    if kept is None or not kept.exists():
        return known
    with kept.open("r+b") as file:
        end = 0
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                key, score = pickle.load(file)
                known[key], end = score, file.tell()
        file.truncate(end)
    return known


def rows_of(texts: Sequence[str]) -> list[Row]:
    """Rows whose title or group holds one of the texts; all where there is none. SystemExit where a text finds none."""
    for text in texts:
        if not any(text == row.group or text.lower() in row.title.lower() for row in ROWS):
            raise SystemExit(f"no row holds '{text}': --list names them all")
    return [row for row in ROWS if not texts or any(t == row.group or t.lower() in row.title.lower() for t in texts)]


def table(results: Sequence[Result], say: Callable[[str], None] = print) -> str:
    """Markdown of these rows."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
    lines += [f"| {' | '.join(result.cells())} |" for result in results]
    reached = sum(not result.failures for result in results)
    lines += ["", f"{reached} of {len(results)} rows reach every bar."]
    return "\n".join(lines)


def run_rows(rows: Sequence[Row], seeds: int, jobs: int, verbose: bool, kept: Path | None) -> list[Result]:
    """Measure rows and print each as it is complete."""
    scores = in_parallel([(row, seed) for row in rows for seed in range(seeds)], jobs, kept)
    found = []
    for row in rows:
        began = time.monotonic()
        of_row = []
        for seed in range(seeds):
            of_row.append(next(scores))
            if verbose:
                print(f"    {seed}: {_of_one(of_row[-1])}", flush=True)
        found.append(Result(row, of_row))
        print(f"{row.group}: {' | '.join(found[-1].cells())}  ({time.monotonic() - began:.0f} s)", flush=True)
    return found


def run_real_path(steps: int) -> list[Result]:
    """Train beside each board of the real path, and print its row."""
    from benchmarks.hostile.real_path import BOARDS, run_board

    found = []
    for board in BOARDS:
        row = Row(f"real path: {board.title}", MISSTATED, group="real path")
        found.append(Result(row, [run_board(board, steps)]))
        print(f"{' | '.join(found[-1].cells())}  {_of_one(found[-1].scores[0])}", flush=True)
    return found


def _of_one(score: Score) -> str:
    if score.kinds is None or score.modules is None:
        return f"{score.refused}"
    kinds, modules = together([score.kinds]), together([score.modules])
    return (
        f"error {kinds.error:.1%} (caused {score.caused_error:.1%}), inside {_percent(kinds.inside, kinds.stated)} / "
        f"{_percent(modules.inside, modules.stated)}, called {_percent(kinds.called, kinds.energy)}, true "
        f"{_percent(kinds.true, kinds.called)} / {_percent(modules.true, modules.called)}, total "
        f"{score.whole_off:+.2%} {score.whole_holds} {score.note}"
    )


def run_cells(count: int, jobs: int, kept: Path | None) -> str:
    """Measure a grid, and say what it found in a paragraph."""
    tasks = list(cells(count))
    kinds, broken, wrong, calls, narrow = [], 0, [], 0, 0
    for (row, seed), score in zip(tasks, in_parallel(tasks, jobs, kept), strict=True):
        if score.kinds is None:
            if (score.refused or "").startswith("broke down"):
                broken += 1
                print(f"{row.title} ({seed}): {score.refused}", flush=True)
            continue
        sums = together([score.kinds])
        kinds.append(score.kinds)
        calls += bool(sums.called)
        narrow += bool(sums.stated and sums.inside < INSIDE * sums.stated)
        if sums.false_10 or sums.false_30:
            wrong.append(row.title)
            print(f"FALSE {row.title} ({seed}): {_of_one(score)}", flush=True)
    sums = together(kinds)
    verdict = "reached" if not wrong and not broken else "MISSED"
    return (
        f"Grid of {len(tasks)} cells, sensor x step length ({CELL_TEXT}): {sums.false_10} parts in error by more than "
        f"30 % are called within 10 %, {sums.false_30} within 30 % with an interval that misses, in {len(wrong)} "
        f"cells; {broken} break down: {verdict}. "
        f"{calls} cells call something within 10 %, {_percent(sums.true, sums.called)} of that energy truly is; of "
        f"their energy {_percent(sums.inside, sums.stated)} lies inside its interval."
    )


CELL_TEXT = "9 s each, 8 kinds, 40 places, steps of 1/2 to 3 times the refresh and of 10 to 250 ms"
BEGIN, END = "<!-- hostile -->", "<!-- /hostile -->"


def write(page: Path, parts: Sequence[str]) -> None:
    """Put what was measured between the marks of the page."""
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{page} has no {BEGIN} ... {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    said = "\n\n".join([f"Measured on {time.strftime('%Y-%m-%d', time.gmtime())}.", *parts])
    page.write_text(f"{before}{BEGIN}\n{said}\n{END}{after}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", nargs="*", default=[], metavar="TEXT", help="titles, or groups, of rows")
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--cells", type=int, default=0, help="cells of the grid; without --rows the grid alone")
    arguments.add_argument("--real-path", action="store_true", help="whole trainings under `stepscope run`")
    arguments.add_argument("--steps", type=int, default=200, help="of a training of the real path")
    arguments.add_argument("--jobs", type=int, default=1)
    arguments.add_argument("--kept", type=Path, help="file of scores: goes on from there")
    arguments.add_argument("--write", type=Path, help="a page with the marks of this table")
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("-v", "--verbose", action="store_true", help="a line each seed")
    options = arguments.parse_args()
    if options.list:
        print("\n".join(f"{row.group:8s} {row.title}" for row in ROWS))
        return
    parts = []
    if options.rows or not (options.cells or options.real_path) or options.write:
        results = run_rows(rows_of(options.rows), options.seeds, options.jobs, options.verbose, options.kept)
        parts.append(table(results))
    if options.real_path:
        parts.append(table(run_real_path(options.steps)))
    if options.cells:
        parts.append(run_cells(options.cells, options.jobs, options.kept))
    print("\n\n".join(["", *parts]))
    if options.write:
        write(options.write, parts)


if __name__ == "__main__":
    main()
