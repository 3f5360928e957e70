"""The contract between recording and reading: what lies in a run folder, who writes it, how it is read.

`RunWriter` is the recording half, `RunReader` the reading half; they share nothing else but the columns of `schema`.
Every file has one writer and can be read after a crash up to its last flush. docs/run-folder.md is the page for users.
The writer is standard library; what needs numpy or polars is imported when it is asked for: a training process never
needs polars, and the command line that waits for it neither.

Schema history
  1  first version
  2  samples and steps may lie in several files, see `stepscope.part_names`
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stepscope.runfolder.schema import (
    AUTOGRAD_NODE,
    CATEGORIES,
    COLLECTIVE,
    COLLECTIVE_CALL,
    COMMUNICATION,
    DATA_LOADER,
    HELD,
    MODULE_CALL,
    PHASES,
    SCHEMA,
    STATUSES,
    sample_dtype,
)
from stepscope.runfolder.writer import RunWriter

if TYPE_CHECKING:
    from stepscope.runfolder.parts import Part
    from stepscope.runfolder.reader import RunReader
    from stepscope.runfolder.tables import MEMORY, MODEL, OPS, SOURCES, STEPS, part_of

__all__ = [
    "AUTOGRAD_NODE",
    "CATEGORIES",
    "COLLECTIVE",
    "COLLECTIVE_CALL",
    "COMMUNICATION",
    "DATA_LOADER",
    "HELD",
    "MEMORY",
    "MODEL",
    "MODULE_CALL",
    "OPS",
    "PHASES",
    "SCHEMA",
    "SOURCES",
    "STATUSES",
    "STEPS",
    "Part",
    "RunReader",
    "RunWriter",
    "part_of",
    "sample_dtype",
]

_LAZY = {
    "Part": "stepscope.runfolder.parts",
    "RunReader": "stepscope.runfolder.reader",
    **dict.fromkeys(("MEMORY", "MODEL", "OPS", "SOURCES", "STEPS", "part_of"), "stepscope.runfolder.tables"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
