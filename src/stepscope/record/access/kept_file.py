"""A sysfs file that stays open over many reads, and is looked for again when its device has gone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from stepscope.clock import Clock, monotonic_ns
from stepscope.record.formats.attribute import READ_ONLY

RETRY_NS = 1_000_000_000
_GONE = (errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.ESTALE)


class KeptFile:
    """Opens what `find` names; a device that comes back, even under another number, is read again within a second."""

    def __init__(self, find: Callable[[], Path | None], clock: Clock = monotonic_ns) -> None:
        self._find, self._clock = find, clock
        self._retry_at_ns = 0
        self._file: int | None = None
        self._open()

    def read(self, size: int) -> bytes:
        """Up to size bytes from the beginning; raises OSError, ENODEV while the device is away."""
        if self._file is not None and not os.fstat(self._file).st_nlink:
            self.close()  # a plain file of a simulated tree was replaced; the old one would be read for ever
            self._retry_at_ns = 0
        if self._file is None:
            self._look_again()
        file = self._file
        if file is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        try:
            return os.pread(file, size, 0)
        except OSError as error:
            if error.errno in _GONE:
                self.close()
                self._retry_at_ns = 0
            raise

    def close(self) -> None:
        """Let go of the file; a later read looks for it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _look_again(self) -> None:
        now_ns = self._clock()
        if now_ns < self._retry_at_ns:
            return
        self._retry_at_ns = now_ns + RETRY_NS
        self._open()

    def _open(self) -> None:
        path = self._find()
        if path is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self._file = os.open(path, READ_ONLY)


def keep_open(paths: list[Path], clock: Clock = monotonic_ns) -> tuple[list[tuple[Path, KeptFile]], list[OSError]]:
    """Those of the paths that open, and why the others do not."""
    kept: list[tuple[Path, KeptFile]] = []
    refused: list[OSError] = []
    for path in paths:
        try:
            kept.append((path, KeptFile(partial(Path, path), clock)))
        except OSError as error:
            error.filename = error.filename or str(path)
            refused.append(error)
    return kept, refused


def close_all(files: list[KeptFile]) -> None:
    """Close every file."""
    for file in files:
        file.close()
