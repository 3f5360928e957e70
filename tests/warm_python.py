"""Python processes that begin with the heavy imports done: torch alone takes two seconds, and tests want a hundred.

`python -m tests.warm_python` imports them once and then forks for every order on its stdin, a line of JSON. The fork
becomes `python -m module ...` or `python -c program ...`, in a folder and environment of its own, with nothing of
earlier orders in it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.patience import HANG_S

# Not polars: it starts threads as it is imported, and a fork has none of them.
HEAVY = ("numpy", "scipy.optimize", "torch", "torch._dynamo", "altair", "jinja2", "vl_convert", "rich.table")


class WarmPython:
    """Starts its processes; one after the other."""

    spent_s = 0.0  # CPU time of all of them so far

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.warm_python"]
        root = Path(__file__).parents[1]
        self._server = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run([sys.executable, *arguments], cwd=cwd)` gives, with what was said."""
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None
        assert stdout is not None
        with tempfile.TemporaryDirectory(prefix="warm-") as folder:
            said = [Path(folder, name) for name in ("out", "err")]
            order = {"arguments": list(arguments), "cwd": str(cwd), "environment": dict(os.environ)}
            try:
                stdin.write(json.dumps({**order, "said": [str(path) for path in said]}) + "\n")
                stdin.flush()
            except BrokenPipeError:
                raise RuntimeError(f"the warm interpreter ended with {self._server.wait()}") from None
            code, spent_s = stdout.readline().split()
            WarmPython.spent_s += float(spent_s)
            out, err = (path.read_text(encoding="utf-8") for path in said)
        return subprocess.CompletedProcess([sys.executable, *arguments], int(code), out, err)

    def close(self) -> None:
        """End it."""
        self._server.communicate()


def serve() -> dict[str, Any] | None:
    """Fork for each order; comes back in a fork with its order, and with None at the end of stdin."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return dict(json.loads(line))
        _, status, used = os.wait4(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)} {used.ru_utime + used.ru_stime}\n")
        sys.stdout.flush()
    return None


def become(order: dict[str, Any]) -> None:
    """Turn this fork into the process that was ordered."""
    for descriptor, path in enumerate(["/dev/null", *order["said"]]):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    signal.alarm(int(HANG_S))
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    flag, what, *rest = order["arguments"]
    sys.orig_argv[1:] = order["arguments"]
    sys.argv = [flag, *rest]
    sys.path[0] = order["cwd"] if flag == "-m" else ""
    if flag == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))


def end(code: int) -> None:
    """Leave as the interpreter does, but without taking torch down module by module: that takes over a second."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    ordered = serve()
    if ordered is not None:
        try:
            become(ordered)
        except SystemExit as left:
            if isinstance(left.code, str):
                sys.stderr.write(f"{left.code}\n")
            end(left.code if isinstance(left.code, int) else int(left.code is not None))
        except BaseException:
            sys.excepthook(*sys.exc_info())
            end(1)
        end(0)
