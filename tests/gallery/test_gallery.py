"""Scripts that must behave under Stepscope as without it: stdout, exit code, exception, files, and what they print of
their weights. They were written from the issue and the docs, by somebody who had not read the code.

Every script runs bare, under `stepscope run` and within `stepscope.profile`, and some of them with a fault in each of
our own functions in turn.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gallery.faults import injectable

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))
MODES = ("run", "profile")
RECORDS = (("adaptive", "auto"), ("all", "auto"), ("all", "all"), ("every:3", "all"))
FAULTY = ("early_stopping_restores_best_state", "dataloader_no_workers_shuffled", "gan_two_optimizers",
          "hand_written_sgd_by_data", "lbfgs_closure", "ends_by_uncaught_own_exception")  # fmt: skip
PARALLEL = 2
OWN_FOLDER = "runs"
Results = dict[str, dict[str, Any]]


def _job(folder: Path, script: Path, mode: str, number: int, fault: str | None = None) -> dict[str, Any]:
    record, memory = ("all", "all") if fault else RECORDS[number % len(RECORDS)]
    name = f"{script.stem}-{mode}" + (f"-{number}" if fault else "")
    (folder / name).mkdir()
    chosen = {"script": str(script), "mode": mode, "folder": str(folder / name), "record": record, "memory": memory}
    return {**chosen, "fault": fault} if fault else chosen


def _run(folder: Path, jobs: list[dict[str, Any]]) -> Results:
    """What came of each job, by the name of its folder."""
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": ""}
    command = [sys.executable, str(HERE / "server.py"), str(folder / "jobs.json"), str(PARALLEL)]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    return {Path(job["folder"]).name: _result(Path(job["folder"])) for job in jobs}


def _result(folder: Path) -> dict[str, Any]:
    status = (folder / "status").read_text(encoding="utf-8")
    errors = [line for line in (folder / "stderr").read_text(errors="replace").splitlines() if line.strip()]
    return {
        "exit": "timeout" if (folder / "timeout").exists() else status,
        "stdout": (folder / "stdout").read_text(errors="replace"),
        "exception": errors[-1] if status == "1" and errors and not errors[-1].startswith(" ") else None,
        "files": _files(folder / "work"),
        "faults": [fault for run in [*folder.glob("work/runs/*"), *folder.glob("out/*")] for fault in _faults(run)],
    }


def _files(work: Path) -> dict[str, str]:
    found = {}
    for path in sorted(work.rglob("*")):
        name = path.relative_to(work)
        if name.parts[0] != OWN_FOLDER and "__pycache__" not in name.parts:
            found[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


def _faults(run: Path) -> list[str]:
    try:
        lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line for line in lines if '"profiling-failed"' in line]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All scripts in all modes."""
    folder = tmp_path_factory.mktemp("gallery")
    jobs = [_job(folder, script, mode, number) for number, script in enumerate(SCRIPTS) for mode in ("bare", *MODES)]
    return _run(folder, jobs)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Some scripts, with a fault in each function in turn."""
    folder = tmp_path_factory.mktemp("faults")
    scripts = [HERE / "scripts" / f"{name}.py" for name in FAULTY]
    jobs = [
        _job(folder, scripts[number % len(scripts)], "run", number, fault) for number, fault in enumerate(injectable())
    ]
    return _run(folder, jobs)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("script", [script.stem for script in SCRIPTS])
def test_a_script_behaves_as_without_us(results: Results, script: str, mode: str) -> None:
    bare, measured = results[f"{script}-bare"], results[f"{script}-{mode}"]
    for what in ("exit", "stdout", "exception", "files"):
        assert measured[what] == bare[what], f"{what} of {script} differs under {mode}"
    assert measured["faults"] == [], "our own fault was caught"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "fault"), list(enumerate(injectable())), ids=injectable())
def test_a_fault_of_ours_changes_nothing(results: Results, faulty: Results, number: int, fault: str) -> None:
    script = FAULTY[number % len(FAULTY)]
    bare, broken = results[f"{script}-bare"], faulty[f"{script}-run-{number}"]
    for what in ("exit", "stdout", "exception", "files"):
        assert broken[what] == bare[what], f"{what} of {script} differs with a fault in {fault}"
