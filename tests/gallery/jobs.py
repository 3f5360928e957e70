"""Runs of gallery scripts and what came of them: what a caller of `server.py` needs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.runfolder import RunReader

HERE = Path(__file__).parent
TRUTH: dict[str, dict[str, Any]] = json.loads((HERE / "truth.json").read_text(encoding="utf-8"))
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))
MODES = ("run", "profile")
RECORDS = (("adaptive", "auto"), ("all", "auto"), ("all", "all"), ("every:3", "all"))
SAME = ("exit", "stdout", "exception", "files")  # what must be as without us
OWN_FOLDER = "runs"
LONG = ("compile", "every", "execv", "export", "loop_of_plain", "spawn", "subprocess", "three_thousand")  # start first
Job = dict[str, Any]
Results = dict[str, dict[str, Any]]


def job(folder: Path, script: Path, mode: str, number: int, name: str = "", **what: Any) -> Job:
    """A run of a script in a folder of its own; `number` chooses what is recorded."""
    record, memory = RECORDS[number % len(RECORDS)]
    own = folder / (name or f"{script.stem}-{mode}")
    own.mkdir()
    return {"script": str(script), "mode": mode, "folder": str(own), "record": record, "memory": memory, **what}


def run_jobs(folder: Path, jobs: list[Job], parallel: int, modules: Sequence[str] = ()) -> Results:
    """Return what came of each job, by the name of its folder."""
    first = sorted(jobs, key=lambda job: not any(word in Path(job["script"]).stem for word in LONG))
    (folder / "jobs.json").write_text(json.dumps(first), encoding="utf-8")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "",
        "PYTHONHASHSEED": "1",
    }
    command = [sys.executable, str(HERE / "server.py"), str(folder / "jobs.json"), str(parallel), *modules]
    # a pipe, as the stdout of each script is: Python asks at its start whether it can seek there
    subprocess.run(command, check=True, env=environment, cwd=folder, stdout=subprocess.PIPE)
    return {Path(job["folder"]).name: _result(Path(job["folder"]), Path(job["script"]).stem) for job in jobs}


def _result(folder: Path, script: str) -> dict[str, Any]:
    status = (folder / "status").read_text(encoding="utf-8")
    runs = [*folder.glob("work/runs/*"), *folder.glob("out/*")]
    errors = [line for line in (folder / "stderr").read_text(errors="replace").splitlines() if line.strip()]
    return {
        "script": script,
        "exit": "timeout" if (folder / "timeout").exists() else status,
        "stdout": (folder / "stdout").read_text(errors="replace"),
        "exception": errors[-1] if status == "1" and errors and not errors[-1].startswith(" ") else None,
        "files": _files(folder / "work"),
        "stderr": (folder / "stderr").read_text(errors="replace"),
        "modules": _lines(folder / "modules"),
        "faults": [line for run in runs for line in _events(run) if '"profiling-failed"' in line],
        "events": [line for run in runs for line in _events(run)],
        **_counted(runs),
    }


def _lines(file: Path) -> list[str]:
    """Return the lines that were written whole: there may be a limit for the size of files."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [line.strip() for line in lines if line.endswith("\n")]


def _counted(runs: list[Path]) -> dict[str, Any]:
    """Steps of the run, and the numbers of samples that they have; null where there is no run."""
    steps = RunReader(runs[0]).steps if len(runs) == 1 and (runs[0] / "run.json").exists() else None
    if steps is None:
        return {"steps": None, "samples": []}
    return {"steps": steps.height, "samples": sorted(steps["samples"].drop_nulls().unique())}


def _files(work: Path) -> dict[str, str]:
    found = {}
    for path in sorted(work.rglob("*")):
        name = path.relative_to(work)
        if name.parts[0] != OWN_FOLDER and "__pycache__" not in name.parts:
            found[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


def _events(run: Path) -> list[str]:
    try:
        return (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
