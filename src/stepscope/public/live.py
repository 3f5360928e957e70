"""`stepscope.live`: a run while it goes on, as `stepscope live` shows it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.report.live.now import Now, Watch
from stepscope.report.live.watching import looks
from stepscope.runfolder import RunReader

if TYPE_CHECKING:
    from stepscope import Run


def live(run: str | Path | Run = "last", every_s: float = 0.5) -> Iterator[Now]:
    """Look at a run every `every_s` seconds until it has ended: step, pace, time left, load, power, memory, heat.

    run: a Run, the path of its folder, its name in `runs`, or "last". The last look is the one that finds it ended;
    of a run that had ended before, it knows the status alone. Only the folder is read: the training does not notice.
    Shares are of one, power is in W, memory in bytes, time left in s; None is "not known". Raises RunError where there
    is no run.
    """
    folder = (run if isinstance(run, RunReader) else RunReader(run)).path
    with contextlib.closing(Watch(folder)) as watch:
        yield from looks(watch, watch.look(), every_s, time.sleep)
