"""Runs one program bare, counted, and under `stepscope run`, each in a fresh copy at the same path."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import stepscope
from benchmarks.scripts.compare import Verdict, same_files, same_text
from benchmarks.scripts.process import Ended, run
from benchmarks.scripts.programs import SMALLEST, Program
from benchmarks.scripts.truth import COUNTS, Trained, counted, found

_BARE_RUNS, _MOST_BARE_RUNS = 2, 4
_HERE = Path(__file__).resolve().parent
_SOURCES = (str(Path(stepscope.__file__).resolve().parents[1]), str(_HERE.parents[1]))
_SMALLEST = """import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Left:
    """A run and the files that it made or changed, name to digest."""

    ended: Ended
    files: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """One row: what is true, what was found, and what it cost; without `measured` only the bare program ran."""

    name: str
    bare_code: int
    bare_cpu_s: float
    bare_peak_bytes: int
    bare_wall_s: float
    truth: Trained
    trouble: str
    code: int | None = None
    stdout: Verdict | None = None
    files: Verdict | None = None
    measured: Trained | None = None
    cpu_s: float | None = None
    peak_bytes: int | None = None


class Workplace:
    """Where programs of FOLDER run: `.work` in it, emptied between runs; data are made once."""

    def __init__(self, folder: Path, python: str, patience: float = 1.0) -> None:
        self.folder, self.python, self.patience = folder, python, patience
        self.work = folder / ".work"
        self.place, self.runs, self.counts = self.work / "place", self.work / "runs", self.work / "counts"
        self.home = self.work / "home"  # kept: caches, and what Stepscope measures once for a device, are no row's cost
        self.work.mkdir(exist_ok=True)
        self._lock = (self.work / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"programs are being run in {self.work} already: wait, or use another folder") from None

    def repository(self, program: Program) -> Path:
        """Where the program's repository is expected."""
        return self.folder / program.repository.split("/")[1]

    def bare(self, program: Program) -> Left:
        """Run it as it is."""
        return self._run(program, [self.python, *shlex.split(program.call)], {}, "")

    def counted(self, program: Program) -> Left:
        """Run it bare with the counter in front, which leaves what it saw in `counts`."""
        self._empty_counts()
        return self._run(program, [self.python, *shlex.split(program.call)], self._counting(), str(_HERE / "counter"))

    def settle(self) -> None:
        """Have Stepscope measure what it measures once for a device, so that no row pays for it."""
        if not (self.home / ".cache" / "stepscope").is_dir():
            self.profiled(SMALLEST)

    def _counting(self) -> dict[str, str]:
        return {"PROGRAM_COUNTS": str(self.counts)}

    def _empty_counts(self) -> None:
        shutil.rmtree(self.counts, ignore_errors=True)
        self.counts.mkdir(parents=True)

    def profiled(self, program: Program) -> Left:
        """Run it under `stepscope run`, its run folders in `runs`.

        A program that is ended by Ctrl-C ends each time at another step: this very run is counted, its layers apart.
        """
        words = shlex.split(program.call)
        as_module = words[0] == "-m"
        target, *arguments = words[1:] if as_module else words
        options = ["-q", "--out", str(self.runs), *(["-m"] if as_module else [])]
        command = [self.python, "-m", "stepscope", "run", *options, target, "--", *arguments]
        if program.stop_after is None:
            return self._run(program, command, {}, "")
        self._empty_counts()
        return self._run(program, command, {**self._counting(), "PROGRAM_COUNTS_LAYERS": "0"}, str(_HERE / "counter"))

    def _run(self, program: Program, command: list[str], more: Mapping[str, str], in_front: str) -> Left:
        self._set_out(program)
        before = _states(self.place)
        env = self._environment(program, more, in_front)
        limit_s = program.limit_s * self.patience
        ended = run(command, self.place / program.cwd, env, limit_s, program.stop_after, program.terminal)
        changed = [name for name, state in _states(self.place).items() if before.get(name) != state]
        return Left(ended, {name: hashlib.sha256((self.place / name).read_bytes()).hexdigest() for name in changed})

    def _set_out(self, program: Program) -> None:
        for old in (self.place, self.runs, self.work / "tmp"):
            shutil.rmtree(old, ignore_errors=True)
            old.mkdir(parents=True)
        self.home.mkdir(exist_ok=True)
        for path in program.copied:
            _copy(self.repository(program) / path, self.place / path)
        if program is SMALLEST:
            (self.place / SMALLEST.call).write_text(_SMALLEST)
        for path, kind in program.data:
            _copy(self._made(kind), self.place / path)

    def _made(self, kind: str) -> Path:
        kept = self.work / "data" / kind
        if not kept.exists():
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(_SOURCES)}
            command = [self.python, "-W", "ignore", "-m", "benchmarks.scripts.data", kind, str(kept)]
            subprocess.run(command, env=env, check=True, capture_output=True)
        return kept

    def _environment(self, program: Program, more: Mapping[str, str], in_front: str) -> dict[str, str]:
        own = {name: value.replace("{place}", str(self.place)) for name, value in program.env}
        paths = [in_front, own.pop("PYTHONPATH", ""), _SOURCES[0]]
        return {
            **{name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE") if name in os.environ},
            "HOME": str(self.home), "TMPDIR": str(self.work / "tmp"), "TERM": "xterm", "COLUMNS": "100",
            "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
            "TOKENIZERS_PARALLELISM": "false", **own, **more, "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }  # fmt: skip


def examine_bare(workplace: Workplace, program: Program) -> Outcome:
    """What is true of a program, from one counted run."""
    ended = workplace.counted(program).ended
    truth = counted(workplace.counts, program, ended.stdout)
    return Outcome(program.name, ended.code, ended.cpu_s, ended.peak_bytes, ended.wall_s, truth, _trouble(ended))


def examine(workplace: Workplace, program: Program) -> Outcome:
    """The row of a program that is there."""
    seen = workplace.counted(program)  # first: it fills the caches
    truth = counted(workplace.counts, program, seen.ended.stdout)
    bare = [workplace.bare(program) for _ in range(_BARE_RUNS)]
    ours = workplace.profiled(program)
    measured = found(workplace.runs)
    if program.stop_after is not None or program.truth not in COUNTS:
        truth = replace(truth, steps=counted(workplace.counts, program, ours.ended.stdout).steps)
    text, files = _compared(bare, ours)
    code = bare[0].ended.code
    while len(bare) < _MOST_BARE_RUNS and ours.ended.code == code and False in (text.same, files.same):
        bare.append(workplace.bare(program))  # what varies may not have varied yet
        text, files = _compared(bare, ours)
    return Outcome(
        program.name, code, statistics.mean(one.ended.cpu_s for one in bare),
        max(one.ended.peak_bytes for one in bare), statistics.mean(one.ended.wall_s for one in bare), truth,
        _trouble(ours.ended) if ours.ended.code != code else "", ours.ended.code, text, files,
        measured, ours.ended.cpu_s, ours.ended.peak_bytes,
    )  # fmt: skip


def _compared(bare: list[Left], ours: Left) -> tuple[Verdict, Verdict]:
    texts, files = [one.ended.stdout for one in bare], [one.files for one in bare]
    return same_text(texts, ours.ended.stdout), same_files(files, ours.files)


def _trouble(ended: Ended) -> str:
    """The last line of stderr of a run that did not end well."""
    if not ended.in_time:
        return "not ended in time"
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return lines[-1].strip()[:160] if ended.code and lines else ""


def _states(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file below, by name."""
    files = [one for one in folder.rglob("*") if one.is_file() and not one.is_symlink()]
    return {str(one.relative_to(folder)): (one.stat().st_size, one.stat().st_mtime_ns) for one in files}


def _copy(source: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)
