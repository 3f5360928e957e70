"""Run the main commands one after the other, as a user would, and keep what each said, its exit code and its time.

Each is the command line's own `main`, in a child of a process that has imported torch already.
"""

from __future__ import annotations

import json
import os
import platform
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path

from lab.arm64.warm import forked, stepscope, torch

SCRIPT, PROFILED = (str(Path(__file__).with_name(name)) for name in ("script.py", "profiled.py"))
COMMANDS: dict[str, tuple[str, ...]] = {
    "doctor": ("doctor", "--json"),
    "profile": (PROFILED,),  # a line in a training script
    "run of a script": ("run", "--record-memory", "all", "--out", "scripts", SCRIPT),
    "run": ("run", "lenet", "--steps", "17", "--batch", "2", "--out", "runs"),
    "report": ("report", "last"),
    "page": ("report", "last", "--html"),
    "brief": ("brief", "last"),
    "compare": ("compare", "runs", "scripts"),
    "fit": ("fit", "lenet", "--batch", "4", "--no-options", "--json"),
    "forecast": ("forecast", "last", "--steps", "1000", "--json"),
    "study kernels": (
        "study", "kernels", "--quick", "--ops", "linear,conv", "--kernel", "3", "--batch", "2", "--channels", "8",
        "--sizes", "8", "--out", "kernels",
    ),
    "suite": (
        "suite", "run", "lenet,autoencoder-640,activity-cnn-6x100", "--batch", "2", "--steps", "6",
        "--repeats", "1", "--out", "suite",
    ),
}  # fmt: skip


def run(words: tuple[str, ...]) -> object:
    """Run a script, or a command line."""
    return runpy.run_path(*words, run_name="__main__") if words == (PROFILED,) else stepscope(words)


def main() -> None:
    """Run all in a folder of their own; what ran is in results.json after each, so that a stop keeps the rest.

    More words name the commands to run.
    """
    out, names = Path(sys.argv[1]).absolute(), sys.argv[2:] or list(COMMANDS)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if "run" not in names:
        (out / "runs").symlink_to("scripts")  # the newest run is the script's
    os.environ["STEPSCOPE_CEILINGS"] = "off"  # of the runs; the study of kernels measures them
    versions = {"machine": platform.machine(), "python": platform.python_version(), "torch": torch.__version__}
    results: dict[str, object] = {}
    for name in names:
        code, seconds = forked(partial(run, COMMANDS[name]), out, name.replace(" ", "-"))
        results[name] = {"code": code, "seconds": round(seconds, 1)}
        (out / "results.json").write_text(json.dumps({**versions, "commands": results}, indent=1))


if __name__ == "__main__":
    main()
