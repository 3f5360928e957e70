"""Judge what the commands did on ARM64 against the same commands on this machine; a row a check."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from lab.arm64.commands import COMMANDS
from lab.table import Row, write_rows

from stepscope.runfolder import RunReader

WITHIN = 0.03  # of a live peak, predicted against measured: the worst that benchmarks/memory_fit allows
COPIES = {"aten::clone", "aten::contiguous", "aten::copy_", "aten::empty", "aten::empty_like", "aten::empty_strided"}
SMALL_BYTES = 230_000  # what docs/memory.md states of steps below 20 MB


def commands(arm: Path, here: Path, old: Path) -> Iterator[Row]:
    """Every command ends as it ends here; a few under an old Python and an old torch."""
    told = {place: json.loads((place / "results.json").read_text()) for place in (arm, here, old)}
    for place in told:
        said = ", ".join(f"{name} {told[place][name]}" for name in ("python", "torch"))
        yield Row("commands", f"{place.name}: versions", True, f"{told[place]['machine']}, {said}")
    results = {place: told[place]["commands"] for place in told}
    for place, names in ((arm, COMMANDS), (old, results[old])):
        for name in names:
            there, same = (results[where].get(name, {"code": None, "seconds": 0}) for where in (place, here))
            what = f"{name} ends as on x86-64" if place is arm else f"{name} ends well, Python and torch old"
            detail = f"exit code {there['code']} after {there['seconds']:.0f} s"
            detail += f"; here {same['code']}, {same['seconds']:.0f} s" if place is arm else ""
            yield Row("commands", what, there["code"] == 0 == same["code"], detail)


def runs(arm: Path, here: Path, old: Path) -> Iterator[Row]:
    """A run folder is the same but for its numbers: files, columns, layers, operators."""
    seen = [("workload", arm / "runs"), ("script", arm / "scripts"), ("profile", arm / "profiles")]
    for name, place in [*seen, ("script, Python and torch old", old / "scripts")]:
        pair = [_run(place), _run(here / place.name)]
        shapes = [_schema(run) for run in pair]
        more, less = set(shapes[0]) - set(shapes[1]), set(shapes[1]) - set(shapes[0])
        different = [key for key in shapes[0].keys() & shapes[1].keys() if shapes[0][key] != shapes[1][key]]
        detail = f"{len(shapes[0])} files" + "".join(
            f"; {word}: {', '.join(sorted(names))}"
            for word, names in (("only on ARM64", more), ("only here", less), ("other columns", different)) if names
        )  # fmt: skip
        yield Row("run folder", f"{name}: files and columns as on x86-64", not (more or less or different), detail)
        layers = [_layers(run) for run in pair]
        detail = f"{len(layers[0])} layers of {len(layers[1])}"
        yield Row("run folder", f"{name}: same layers and parameters", layers[0] == layers[1] != [], detail)
        if place.parent == old:  # its torch has operators of its own
            continue
        counts = [_operators(run) for run in pair]
        keys = counts[0].keys() | counts[1].keys()
        differ = {key: (counts[0][key], counts[1][key]) for key in keys if counts[0][key] != counts[1][key]}
        told = "; ".join(f"{key} {there} against {same}" for key, (there, same) in sorted(differ.items())[:6])
        detail = f"{sum(counts[0].values())} calls a step of {len(counts[0])} operators" + (f"; {told}" if told else "")
        what = f"{name}: same operators and calls a step, but for copies that kernels make for themselves"
        yield Row("run folder", what, bool(counts[0]) and not set(differ) - COPIES, detail)


def _run(folder: Path) -> RunReader:
    """The last run in a folder."""
    return RunReader(sorted(path for path in folder.iterdir() if (path / "run.json").exists())[-1])


def _layers(run: RunReader) -> list[tuple[object, ...]]:
    """Name, type and parameters of every layer, as model.json has them."""
    modules = json.loads((run.path / "model.json").read_text())
    modules = modules["modules"] if isinstance(modules, dict) else modules
    return [(module.get("module"), module.get("type"), module.get("parameters")) for module in modules]


def _schema(run: RunReader) -> dict[str, list[str]]:
    """Columns of each file of a run, without samples: a sensor that one machine lacks is not in its run."""
    found: dict[str, list[str]] = {}
    for path in sorted(run.path.rglob("*")):
        place = path.relative_to(run.path)
        if path.is_file() and place.parts[0] != "samples" and path.suffix in (".json", ".parquet"):
            name = str(place.parent / "*") if path.suffix == ".parquet" and len(place.parts) > 1 else str(place)
            found[name] = pl.scan_parquet(path).collect_schema().names() if path.suffix == ".parquet" else []
    return found


def _operators(run: RunReader) -> Counter[str]:
    """Calls of each operator in the last profiled step that is whole."""
    ops = run.ops
    steps = ops.group_by("step").len().sort("step")
    usual = steps["len"].mode()[0]
    chosen = steps.filter(pl.col("len") == usual)["step"][-1]
    return Counter(ops.filter(pl.col("step") == chosen)["name"].to_list())


def memory(rows: Path) -> Iterator[Row]:
    """Live peaks as predicted on ARM64."""
    for line in rows.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        what = (
            f"{row['workload']}, batch {row['batch']}: live peak as predicted (within {100 * WITHIN:g} %, or 0.23 MB)"
        )
        if "error" not in row:
            yield Row("memory", what, False, row.get("note", "not measured"))
            continue
        off = row["predicted"] - row["live"]
        holds = abs(row["error"]) <= WITHIN or abs(off) <= SMALL_BYTES
        detail = f"{row['predicted'] / 1e6:.3f} MB predicted, {row['live'] / 1e6:.3f} MB measured"
        yield Row("memory", what, holds, f"{detail} ({100 * row['error']:+.2f} %)")


def main(argv: Sequence[str] | None = None) -> int:
    """Judge all; 0 where all checks hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder that go has filled")
    parser.add_argument("--rows", type=Path, required=True, help="JSON file for the rows")
    options = parser.parse_args(argv)
    places = [options.out / name for name in ("commands", "here", "old")]
    rows: list[Row] = []
    for scene, words in ((commands, places), (runs, places), (memory, [options.out / "memory.jsonl"])):
        try:
            rows += scene(*words)
        except Exception as error:
            rows.append(Row(scene.__name__, "can be judged", False, f"{type(error).__name__}: {error}"))
    write_rows(options.rows, "arm64", rows)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
