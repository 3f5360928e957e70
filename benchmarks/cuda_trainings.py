"""Trainings on a GPU, bare and profiled: `python -m benchmarks.cuda_trainings [--jobs N] [--out FILE] [NAME ...]`.

Each script of benchmarks/cuda_gallery runs bare, under `stepscope run -q`, and with `--record all`. Exit code, stdout
(byte for byte), stderr (without our lines, pids and the like) and the number of updates that the script states must be
the same; where they are not, a second bare run shows whether the script repeats itself. The steps of each run stand
beside the true updates. Each script is a line of JSON as soon as it is done; the folders of those that differ are kept,
and the exit code is 1. `--cpu` hides the GPU: what then runs are the scripts that can.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import stepscope

_SCRIPTS = {path.stem: path for path in sorted((Path(__file__).parent / "cuda_gallery").glob("*.py"))}
_SLOW = (
    "compile_default", "compile_reduce_overhead", "ddp_nccl_one", "fork_workers_after_cuda", "hf_trainer",
    "lightning_gpu", "prefetch_stream", "spawn_cuda_tensors", "timm_vit",
)  # fmt: skip
_MODES: dict[str, tuple[str, ...]] = {"adaptive": (), "all": ("--record", "all")}
_OURS = ("stepscope", "once for this device")
_VARYING = (
    (r"^(\w+:)\d{4}-\d\d-\d\d [\d:.]+ \d+:\d+ ", r"\1 "),  # Kineto's log
    (r"\[([WEIF])\d{4} [\d:.]+ ", r"[\1 "),
    (r"0x[0-9a-f]{6,}", "0x"),
    (r"(pid|process)([ =:]+)\d+", r"\1\2N"),
    (r"[\d.]+ [KMG]iB is free", "N is free"),
    (r"(process(?: N)? has) [\d.]+ [KMG]iB", r"\1 N"),
)
# torch's frame of a module's call, which docs/measuring.md says is replaced
_REPLACED_FRAME = r'  File "[^"]*/torch/nn/modules/module\.py", line \d+, in _wrapped_call_impl\n(?:    .*\n){1,2}'
_STACKS_S, _KILLED_S = 3, 10
Row = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """What a run left: `code` is None where it was ended after its time; `updates` as the script states them."""

    folder: Path
    code: int | None
    stdout: bytes
    stderr: str
    updates: tuple[int, ...]
    seconds: float

    def lines(self) -> list[str]:
        """Return stderr without what may differ from run to run."""
        kept: list[str] = []
        from_device: list[str] = []
        for line in re.sub(_REPLACED_FRAME, "", self.stderr).replace(str(self.folder), "FOLDER").splitlines():
            if line.startswith(_OURS):
                continue
            for pattern, instead in _VARYING:
                line = re.sub(pattern, instead, line, flags=re.IGNORECASE)
            (from_device if "Assertion `" in line else kept).append(line)  # those of a kernel come in any order
            if line.startswith("Fatal Python error:"):  # the stacks follow
                break
        return [*kept, *sorted(from_device)]

    def row(self) -> Row:
        """Return what is kept of every run."""
        return {"code": self.code, "seconds": round(self.seconds, 2), "updates": list(self.updates)}


@dataclass(frozen=True)
class Bench:
    """How scripts are run: where, how long at most, and whether the GPU is hidden."""

    root: Path
    limit_s: float
    cpu: bool

    def run(self, script: Path, name: str, options: tuple[str, ...] | None = None) -> Ended:
        """Run a script in a folder of its own: bare, or under `stepscope run` with these options."""
        folder = self.root / script.stem / name
        folder.mkdir(parents=True)
        out, err, truth = (folder / file for file in (".stdout", ".stderr", ".truth"))
        profiled = [] if options is None else ["-m", "stepscope", "run", "-q", *options, "--out", str(folder / "runs")]
        env = {"STEPSCOPE_CEILINGS": "off", "OMP_NUM_THREADS": "2", **os.environ, "STEPSCOPE_TRUTH": str(truth)}
        env |= {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if self.cpu else {})
        began = time.monotonic()
        with out.open("wb") as to_out, err.open("wb") as to_err:  # no pipes: a process that stays would hold them open
            process = subprocess.Popen(
                [sys.executable, *profiled, str(script)], cwd=folder, env=env, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err,
            )  # fmt: skip
            code = _waited(process, self.limit_s)
        seconds = time.monotonic() - began
        states = truth.read_text(encoding="utf-8") if truth.exists() else ""
        updates = tuple(int(count) for count in re.findall(r"^UPDATES (\d+)$", states, re.M))
        return Ended(folder, code, out.read_bytes(), err.read_text(errors="replace"), updates, seconds)

    def examine(self, script: Path) -> Row:
        """Return the row of a script; its folders stay unless all is the same."""
        bare = self.run(script, "bare")
        row: Row = {"script": script.stem, "verdict": "same", "bare": bare.row()}
        if trouble := _trouble(script, bare):
            return {**row, "verdict": trouble, "stderr": bare.stderr[-3000:]}
        for mode, options in _MODES.items():
            ours = self.run(script, mode, options)
            row[mode] = ours.row() | {"differences": _differences(bare, ours), "runs": _runs(ours.folder / "runs")}
            row[mode]["said"] = [line for line in ours.stderr.splitlines() if line.startswith(_OURS)][:6]
        if any(row[mode]["differences"] for mode in _MODES):
            again = self.run(script, "again")
            row["again"] = again.row() | {"differences": _differences(bare, again)}
            alone = any(row[mode]["differences"].keys() - row["again"]["differences"].keys() for mode in _MODES)
            return {**row, "verdict": "differs" if alone else "bare differs too"}
        shutil.rmtree(self.root / script.stem, ignore_errors=True)
        return row


def _waited(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Return the exit code; after the limit the whole group ends, with its stacks on stderr, and it is None."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(limit_s)
    for sign, seconds in ((signal.SIGABRT, _STACKS_S), (signal.SIGKILL, _KILLED_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    return None


def _trouble(script: Path, bare: Ended) -> str:
    """Name what is wrong with a bare run: a script states in a comment how it ends if not with 0."""
    expected = re.search(r"^# expect-exit: (-?\d+|any)", script.read_text(encoding="utf-8"), re.M)
    if bare.code is None:
        return "bare not done in time"
    return "" if (expected[1] if expected else "0") in ("any", str(bare.code)) else "bare failed"


def _differences(bare: Ended, other: Ended) -> dict[str, str]:
    if other.code is None:
        return {"time": other.stderr[-4000:]}
    found = {}
    if bare.code != other.code:
        found["code"] = f"{bare.code}, then {other.code}: {other.stderr[-2000:]}"
    if bare.stdout != other.stdout:
        found["stdout"] = _changed(*(end.stdout.decode(errors="replace").splitlines(True) for end in (bare, other)))
    if bare.lines() != other.lines():
        found["stderr"] = _changed(bare.lines(), other.lines())
    if bare.updates != other.updates:
        found["updates"] = f"{bare.updates}, then {other.updates}"
    return found


def _changed(first: list[str], second: list[str]) -> str:
    return "\n".join(difflib.unified_diff(first, second, "bare", "then", lineterm="", n=0))[:1000] or "undecodable"


def _runs(folder: Path) -> list[Row]:
    """What the run folders say, one after another."""
    rows: list[Row] = []
    for path in sorted(folder.glob("*/run.json")):
        try:
            run = stepscope.Run(path.parent)
            row = {"status": run.status, "steps": run.steps.height, "profiled": int(run.steps["recorded"].sum())}
            faults = [event for event in run.events if event.get("kind") == "profiling-failed"]
            rows.append(row | ({"faults": faults} if faults else {}))
        except Exception as error:  # what cannot be read is a result as well
            rows.append({"steps": None, "unreadable": repr(error)[:300]})
    return rows


def _words(row: Row) -> str:
    words = [f"{row['script']:24} {row['verdict']}", f"updates {row['bare']['updates']}"]
    for mode in filter(row.__contains__, (*_MODES, "again")):
        differs = ", ".join(row[mode]["differences"]) or "same"
        steps = f", steps {[run['steps'] for run in row[mode]['runs']]}" if "runs" in row[mode] else ""
        faults = ", profiling failed" if any("faults" in run for run in row[mode].get("runs", [])) else ""
        words.append(f"{mode}: {differs}{steps}{faults}, {row[mode]['seconds']} s")
    return "; ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts (default: all)")
    parser.add_argument("--jobs", type=int, default=4, help="scripts at once (default: 4)")
    parser.add_argument("--seconds", type=float, default=90.0, help="after which a run is ended (default: 90)")
    parser.add_argument("--out", type=Path, help="what the lines of JSON are appended to (default: stdout)")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, without a GPU")
    arguments = parser.parse_args()
    named = dict.fromkeys(Path(name).stem for name in arguments.names)
    names = list(named) or sorted(_SCRIPTS, key=lambda name: name not in _SLOW)
    if unknown := [name for name in names if name not in _SCRIPTS]:
        parser.error(f"not in benchmarks/cuda_gallery: {', '.join(unknown)}")
    if not arguments.cpu and not torch.cuda.is_available():
        sys.stderr.write("benchmarks.cuda_trainings needs a GPU that torch can use (on the CPU all the same: --cpu)\n")
        raise SystemExit(2)
    bench = Bench(Path(tempfile.mkdtemp(prefix="cuda-trainings-")), arguments.seconds, arguments.cpu)
    failed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool, contextlib.ExitStack() as files:
        out = files.enter_context(arguments.out.open("a", encoding="utf-8")) if arguments.out else sys.stdout
        for done in as_completed([pool.submit(bench.examine, _SCRIPTS[name]) for name in names]):
            row = done.result()
            failed += row["verdict"] != "same"
            print(json.dumps(row), file=out, flush=True)
            print(_words(row), file=sys.stderr, flush=True)
    sys.stderr.write(f"{len(names)} scripts, {failed} not the same{f': {bench.root}' if failed else ''}\n")
    if not failed:
        shutil.rmtree(bench.root, ignore_errors=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
