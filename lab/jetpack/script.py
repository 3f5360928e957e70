"""A training of six seconds that mostly waits, as one whose data are slow."""

from __future__ import annotations

import time

from lab.arm64.script import step

SECONDS = 6.0

if __name__ == "__main__":
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        step()
        time.sleep(0.1)
