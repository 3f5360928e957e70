"""The contract between recording and reading: what lies in a run folder, who writes it, how it is read.

`RunWriter` is the recording half, `RunReader` the reading half; they share nothing else but the columns of `schema`.
Every file has one writer and can be read after a crash up to its last flush. docs/run-folder.md is the page for users.

Schema history
  1  first version
"""

from __future__ import annotations

from stepscope.runfolder.reader import RunReader
from stepscope.runfolder.schema import (
    CATEGORIES,
    MEMORY,
    MODEL,
    MODULE_CALL,
    OPS,
    PHASES,
    QUANTITIES,
    SCHEMA,
    STATUSES,
    STEPS,
    sample_dtype,
)
from stepscope.runfolder.writer import RunWriter

__all__ = [
    "CATEGORIES",
    "MEMORY",
    "MODEL",
    "MODULE_CALL",
    "OPS",
    "PHASES",
    "QUANTITIES",
    "SCHEMA",
    "STATUSES",
    "STEPS",
    "RunReader",
    "RunWriter",
    "sample_dtype",
]
