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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.gallery.faults import MODULES, injectable

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))
MODES = ("run", "profile")
RECORDS = (("adaptive", "auto"), ("all", "auto"), ("all", "all"), ("every:3", "all"))
FAULTY = ("early_stopping_restores_best_state", "dataloader_no_workers_shuffled", "gan_two_optimizers",
          "hand_written_sgd_by_data", "lbfgs_closure", "ends_by_uncaught_own_exception")  # fmt: skip
PARALLEL = 3  # on two cores: who waits for a sampler leaves its core to the next
OWN_FOLDER = "runs"
Results = dict[str, dict[str, Any]]


def _job(folder: Path, script: Path, mode: str, number: int) -> dict[str, Any]:
    record, memory = RECORDS[number % len(RECORDS)]
    name = f"{script.stem}-{mode}"
    (folder / name).mkdir()
    return {"script": str(script), "mode": mode, "folder": str(folder / name), "record": record, "memory": memory}


def _faulty_job(folder: Path, script: str, name: str, **what: str) -> dict[str, Any]:
    (folder / name).mkdir()
    path = str(HERE / "scripts" / f"{script}.py")
    return {"script": path, "mode": "run", "folder": str(folder / name), "record": "all", "memory": "all", **what}


def _run(folder: Path, jobs: list[dict[str, Any]], modules: Sequence[str] = ()) -> Results:
    """What came of each job, by the name of its folder."""
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": ""}
    command = [sys.executable, str(HERE / "server.py"), str(folder / "jobs.json"), str(PARALLEL), *modules]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    return {Path(job["folder"]).name: _result(Path(job["folder"]), Path(job["script"]).stem) for job in jobs}


def _result(folder: Path, script: str) -> dict[str, Any]:
    status = (folder / "status").read_text(encoding="utf-8")
    errors = [line for line in (folder / "stderr").read_text(errors="replace").splitlines() if line.strip()]
    return {
        "script": script,
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
def calling(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The functions that each script calls when it is measured, by script."""
    folder = tmp_path_factory.mktemp("calls")
    jobs = [_faulty_job(folder, name, name, calls=str(folder / f"{name}.calls")) for name in FAULTY]
    _run(folder, jobs)
    return {name: set((folder / f"{name}.calls").read_text(encoding="utf-8").split()) for name in FAULTY}


@pytest.fixture(scope="module")
def faulty(calling: dict[str, set[str]], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Scripts with a fault in each function in turn that one of them calls; the scripts take turns as well."""
    folder = tmp_path_factory.mktemp("faults")
    jobs = []
    for number, fault in enumerate(injectable()):
        turns = [FAULTY[(number + later) % len(FAULTY)] for later in range(len(FAULTY))]
        script = next((script for script in turns if fault in calling[script]), None)
        if script is not None:
            jobs.append(_faulty_job(folder, script, str(number), fault=fault))
    return _run(folder, jobs, [f"stepscope.{name}" for name in MODULES])


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
def test_a_fault_of_ours_changes_nothing(
    results: Results, calling: dict[str, set[str]], faulty: Results, number: int, fault: str
) -> None:
    if str(number) not in faulty:
        assert not any(fault in called for called in calling.values()), "no script was run with this fault"
        return
    broken = faulty[str(number)]
    bare = results[f"{broken['script']}-bare"]
    for what in ("exit", "stdout", "exception", "files"):
        assert broken[what] == bare[what], f"{what} of {broken['script']} differs with a fault in {fault}"


@pytest.mark.slow
def test_most_functions_are_called_by_some_script(calling: dict[str, set[str]]) -> None:
    """Else hardly any fault would be thrown."""
    assert len(set().union(*calling.values())) > len(injectable()) / 2
