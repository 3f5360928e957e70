"""A script under `stepscope run`, and what a user then gets to read; the table that a benchmark keeps in a page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class RunFailedError(Exception):
    """A command did not do what it should; the text ends with the last lines of its stderr."""


def start(
    target: Path | str,
    arguments: Sequence[str],
    runs: Path,
    prefix: Sequence[str] = (),
    options: Sequence[str] = (),
    **env: str,
) -> Any:
    """Start `stepscope run` on a script or workload, the run folder to be made in `runs`; its output goes there too."""
    runs.mkdir(parents=True, exist_ok=True)
    own = ["--", *arguments] if arguments else []
    command = [*prefix, *_stepscope("run", "--out", str(runs), *options, str(target), *own)]
    with (runs / "stdout").open("wb") as out, (runs / "stderr").open("wb") as err:
        return subprocess.Popen(command, stdout=out, stderr=err, env=environment(env), cwd=ROOT)


def finished(process: Any, runs: Path, limit_s: float = 120.0) -> tuple[Path, str]:
    """Wait for a started run; return its folder and what the script printed. Raises RunFailedError."""
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait(20)
        raise RunFailedError(f"not ended after {limit_s:.0f} s") from None
    folders = [path for path in runs.iterdir() if path.is_dir() and (path / "run.json").is_file()]
    if code or len(folders) != 1:
        ending = (runs / "stderr").read_text(errors="replace").strip()[-600:]
        raise RunFailedError(f"exit code {code}, {len(folders)} run folders: {ending}")
    return folders[0], (runs / "stdout").read_text()


def run(script: Path, arguments: Sequence[str], runs: Path, **env: str) -> tuple[Path, str]:
    """Run a script under `stepscope run` to its end; return the run folder and what the script printed."""
    return finished(start(script, arguments, runs, **env), runs)


def answer(*arguments: str, **env: str) -> Any:
    """Return what a command of stepscope prints as JSON. Raises RunFailedError."""
    ended = subprocess.run(
        _stepscope(*arguments, "--json"), capture_output=True, text=True, env=environment(env), cwd=ROOT, check=False
    )
    if ended.returncode:
        raise RunFailedError(f"stepscope {' '.join(arguments)}: {ended.stderr.strip()[-600:]}")
    return json.loads(ended.stdout)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment in which the benchmarks can be imported."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def wait_for(path: Path, process: Any) -> bool:
    """Wait until a file is there; False where the process ended before."""
    while not path.exists():
        if process.poll() is not None:
            return path.exists()
        time.sleep(0.01)
    return True


def keep(page: Path, mark: str, title: str, text: str) -> None:
    """Replace what stands between the marks of a page, or add them at its end; the page is begun where it is not."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    old = page.read_text() if page.is_file() else f"# {title}\n"
    if begin not in old:
        old = f"{old.rstrip()}\n\n{begin}\n{end}\n"
    before, _, rest = old.partition(begin)
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{rest.partition(end)[2]}")


def workplace() -> tempfile.TemporaryDirectory[str]:
    """Return a folder on a disk, since files in memory are never read from one."""
    return tempfile.TemporaryDirectory(prefix="stepscope-", dir=os.environ.get("TMPDIR", "/var/tmp"))


def _stepscope(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stepscope", *arguments]
