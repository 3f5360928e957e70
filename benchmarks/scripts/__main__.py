"""Public training programs, unmodified, bare and under `stepscope run`: python -m benchmarks.scripts FOLDER.

FOLDER holds their repositories; `--python` names the Python that has what they import, torch included. Each program
runs bare twice, once more with a counter in front, and once under `stepscope run -q`, at the same path and in the same
environment with one thread. What is known of a program stays in FOLDER/.work, so that rows can be made one at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.scripts.compare import Verdict
from benchmarks.scripts.programs import COMMITS, PROGRAMS, Program
from benchmarks.scripts.runner import Outcome, Workplace, examine, examine_bare
from benchmarks.scripts.table import keep, line
from benchmarks.scripts.truth import Trained


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--only", nargs="+", metavar="NAME", help="programs whose name begins so")
    arguments.add_argument("--python", default=sys.executable, help="the interpreter of the programs")
    arguments.add_argument("--bare", action="store_true", help="do not profile: say what is true of the bare programs")
    arguments.add_argument("--write", type=Path, metavar="FILE", help="keep the table in this page, between its marks")
    arguments.add_argument("--patience", type=float, default=1.0, help="times the usual limit, on a busy machine")
    options = arguments.parse_args()
    workplace = Workplace(options.folder.resolve(), options.python, options.patience)
    if not options.bare:
        workplace.settle()
    for program in PROGRAMS:
        if options.only and not program.name.startswith(tuple(options.only)):
            continue
        if not workplace.repository(program).is_dir():
            print(f"{program.name:<38} missing: {fetched_by(program, options.folder)}", flush=True)
            continue
        outcome = (examine_bare if options.bare else examine)(workplace, program)
        if not options.bare:
            _kept_at(workplace, program).write_text(json.dumps(asdict(outcome), indent=1))
        print(line(outcome), flush=True)
    if options.write:
        keep(options.write, [(program, _known(workplace, program)) for program in PROGRAMS], options.python)


def fetched_by(program: Program, folder: Path) -> str:
    """The command that brings a missing repository."""
    name = program.repository.split("/")[1]
    return (
        f"git clone https://github.com/{program.repository} {folder / name}"
        f" && git -C {folder / name} checkout {COMMITS[program.repository]}"
    )


def _kept_at(workplace: Workplace, program: Program) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in program.name)
    folder = workplace.work / "outcomes"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.json"


def _known(workplace: Workplace, program: Program) -> Outcome | None:
    kept = _kept_at(workplace, program)
    if not kept.is_file():
        return None
    known: dict[str, Any] = json.loads(kept.read_text())
    for name in ("truth", "measured"):
        known[name] = Trained(**{**known[name], "steps": tuple(known[name]["steps"])}) if known[name] else None
    for name in ("stdout", "files"):
        known[name] = Verdict(**known[name]) if known[name] else None
    return Outcome(**known)


if __name__ == "__main__":
    main()
