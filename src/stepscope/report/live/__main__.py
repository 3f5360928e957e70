"""python -m stepscope.report.live OUT --of PID [--since-ns N] [--lines]: the view that `live_view` starts."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from stepscope.liveness import is_running
from stepscope.report.live.growing_files import find_run_of_process, wait_for

_KIND = 10  # of niceness: the training comes first


def main() -> int:
    """Show the run of a process until it has ended; 0 whatever became of it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--of", type=int, required=True)
    arguments.add_argument("--since-ns", type=int, default=0)
    arguments.add_argument("--lines", action="store_true")
    options = arguments.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the training, whose end is then shown
    os.nice(_KIND)
    parent = os.getppid()
    run = wait_for(
        lambda: find_run_of_process(options.out, options.of, options.since_ns),
        lambda: os.getppid() != parent or not is_running(options.of),
    )
    if run is not None:
        from rich.console import Console

        from stepscope.report.live.screen import watch

        watch(run, Console(stderr=True), lines=options.lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
