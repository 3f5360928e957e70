"""Run the main commands one after the other, as a user would, and keep what each said, its exit code and its time."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

SCRIPT, PROFILED = (str(Path(__file__).with_name(name)) for name in ("script.py", "profiled.py"))
STEPSCOPE = ("-m", "stepscope")
COMMANDS: dict[str, tuple[str, ...]] = {
    "doctor": (*STEPSCOPE, "doctor", "--json"),
    "profile": (PROFILED,),
    "run of a script": (*STEPSCOPE, "run", SCRIPT, "--out", "scripts"),
    "run": (*STEPSCOPE, "run", "lenet", "--steps", "24", "--batch", "8", "--html", "--out", "runs"),
    "report": (*STEPSCOPE, "report", "last"),
    "page": (*STEPSCOPE, "report", "last", "--html"),
    "brief": (*STEPSCOPE, "brief", "last"),
    "compare": (*STEPSCOPE, "compare", "runs", "scripts"),
    "fit": (*STEPSCOPE, "fit", "lenet", "--batch", "8", "--no-options", "--json"),
    "forecast": (*STEPSCOPE, "forecast", "last", "--steps", "1000", "--json"),
    "study kernels": (
        *STEPSCOPE, "study", "kernels", "--quick", "--ops", "linear,conv", "--kernel", "3", "--batch", "2",
        "--channels", "8", "--sizes", "8", "--out", "kernels",
    ),
    "suite": (
        *STEPSCOPE, "suite", "run", "--workloads", "lenet,resnet8-c32,ds-cnn-kws", "--batch", "4", "--steps", "8",
        "--repeats", "1", "--out", "suite",
    ),
}  # fmt: skip


def main() -> None:
    """Run all in a folder of their own; what ran is in results.json after each, so that a stop keeps the rest."""
    out = Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    results = {}
    for name, words in COMMANDS.items():
        began = time.monotonic()
        ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=out)
        (out / f"{name.replace(' ', '-')}.out").write_text(ended.stdout)
        (out / f"{name.replace(' ', '-')}.err").write_text(ended.stderr)
        results[name] = {"code": ended.returncode, "seconds": round(time.monotonic() - began, 1)}
        told = {"machine": platform.machine(), "python": platform.python_version(), "commands": results}
        (out / "results.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
