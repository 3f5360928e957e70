"""The process behind a simulated board: python -m stepscope.simulate.process; it owns the tree and drives it live.

It reads the training process's marks, follows the power model, lets every sensor model see each stretch of time, and
keeps what was true. It ends when it is told to ("stop" on stdin) or when the training process is gone, and then clears
its files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.clock import monotonic_ns

if TYPE_CHECKING:
    from stepscope.simulate.board_run import BoardRun


def detach() -> None:
    """Go on as nobody's child: the training process's children are its data loaders, and their CPU time is counted as
    such.
    """
    if os.fork():
        os._exit(0)
    os.setsid()


def settle() -> None:
    """Be punctual where that is allowed: a late wake-up is a sensor that refreshes late."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training process
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1000")
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (OSError, AttributeError):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -10)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m stepscope.simulate.process", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="folder with the ring; the tree is made in it")
    parser.add_argument("--truth", type=Path, required=True, help="folder for truth.npz")
    parser.add_argument("--board", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", default="{}")
    parser.add_argument("--pid", type=int, required=True, help="process that trains")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate until told to stop; 0 after an orderly end."""
    options = arguments(argv)
    detach()
    from stepscope.simulate.board_run import BoardRun  # numpy's threads must not be started before the fork
    from stepscope.simulate.boards import parse_options

    with tempfile.TemporaryFile(dir=options.truth) as segments:
        run = BoardRun(options.board, options.home, parse_options(json.loads(options.options)), options.seed, segments)
        settle()
        os.write(1, f"ready {os.getpid()}\n".encode())
        stopped = follow(run, options.pid)
        run.truth().save(options.truth)
        run.close()
    if stopped:
        os.write(1, b"done\n")
    else:
        shutil.rmtree(options.home, ignore_errors=True)
    return 0


def follow(run: BoardRun, pid: int) -> bool:
    """Tick until the training process says stop (True) or is gone (False)."""
    watched = [0]
    with contextlib.suppress(AttributeError, OSError):  # before Linux 5.3, or gone already
        watched.append(os.pidfd_open(pid))
    while True:
        run.tick(monotonic_ns())
        now_ns = monotonic_ns()
        ready = select.select(watched, (), (), (run.next_ns(now_ns) - now_ns) / 1e9)[0]
        if ready:
            run.finish(monotonic_ns())
            return 0 in ready and bool(os.read(0, 16))


if __name__ == "__main__":
    sys.exit(main())
