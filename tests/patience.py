"""Waiting for another process or thread: as long as it takes, since a busy machine is no fault of the code."""

from __future__ import annotations

import time
from collections.abc import Callable

HANG_S = 900.0  # ends what hangs; no machine is so busy that it comes near


def until(true: Callable[[], object], what: str = "what was waited for") -> None:
    """Look every few ms, and fail where it has not come true when everything else must have ended."""
    end = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.005)
