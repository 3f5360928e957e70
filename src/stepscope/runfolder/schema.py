"""Content of a run folder: names, columns, the rows of files that are appended while a run goes on, and what of
run.json several rooms read: where and in which number format a training does most of its arithmetic.

The standard library alone, and numpy where a dtype is asked for: the command line that waits for a training imports
this. The same columns for polars are in `tables`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.files import read_json

if TYPE_CHECKING:
    import numpy as np

    STEP_ROW: np.dtype[Any]


SCHEMA = 2
STATUSES = ("running", "ok", "failed", "oom", "interrupted")
PHASES = ("data", "forward", "backward", "optimizer", "communication", "other")
PARTS = "ranks"  # the folder of a run that holds a part for each further process of a distributed training
COMMUNICATION = "communication"  # the phase of collectives
COLLECTIVE = r"^(?:gloo|nccl|mpi|ucc|xccl|hccl):"  # names of rows that a backend of torch.distributed writes
COLLECTIVE_CALL = r"^(?:c10d|_?c10d_functional)::"  # and of those on the thread that calls it
AUTOGRAD_NODE = "autograd::engine::evaluate_function: "  # names of the rows of backward nodes begin so
QUIET = 0.1  # share of a probe's time in run queues up to which its ceilings are those of the device
DATA_LOADER = "enumerate(DataLoader)#"  # torch's range around the next batch of one; its iterator's type comes behind
HELD = "held"  # the op of tensors that somebody kept from before the step, whoever that is
MODULE_CALL = "nn."  # ops whose name starts so are calls of a module, not of a kernel

TEXT = "text"
STEPS_COLUMNS = {
    "step": "int64",
    "t0_ns": "int64",
    "t1_ns": "int64",
    "samples": "int64",
    "loss": "float64",
    "recorded": "bool",
}
OPS_COLUMNS = {
    "step": "uint32",
    "t0_ns": "int64",
    "t1_ns": "int64",
    "self_ns": "int64",
    "parent": "int32",  # row of the parent within its own step; null at the top
    "name": TEXT,
    "module": TEXT,  # "" is the model itself; null is outside any module
    "phase": TEXT,
    "thread": "uint32",  # a thread of the training process; of a GPU row, the stream
    "device": TEXT,
    "flops": "int64",
    "bytes": "int64",
}
MEMORY_COLUMNS = {
    "step": "uint32",
    "t_ns": "int64",
    "tensor": "int64",  # a storage; its number is its own over the whole run
    "bytes": "int64",  # below zero where it is freed
    "category": TEXT,  # one of CATEGORIES
    "module": TEXT,  # as in OPS_COLUMNS
    "op": TEXT,  # that allocated it
    "phase": TEXT,
    "device": TEXT,
    "shape": TEXT,  # "64x3x32x32"; null where it is no tensor
}
TABLES = {"ops": OPS_COLUMNS, "layers": OPS_COLUMNS, "memory": MEMORY_COLUMNS}  # what is written in parts
_NULL_OF_OPS = frozenset({"parent", "flops", "bytes"})
NULL_BELOW_ZERO = {"ops": _NULL_OF_OPS, "layers": _NULL_OF_OPS, "memory": frozenset[str]()}
CATEGORIES = (
    "parameter",
    "buffer",
    "gradient",
    "optimizer",  # its state
    "input",
    "saved",  # activations
    "temporary",
    "workspace",  # of kernels: no tensor that a dispatcher sees
    "other",
)
MODEL_COLUMNS = {
    "module": TEXT,
    "type": TEXT,
    "parent": TEXT,
    "parameters": "int64",
    "bytes": "int64",
    "flops_forward": "int64",
    "flops_backward": "int64",
    "trainable": "bool",
    "update_share": "float64",  # of what an optimizer's kernels update for many modules at once; null: seen apart
    "region": TEXT,  # compiled or scripted: code within which no call of a module is seen; null is neither
}
_STEP_STRUCT = struct.Struct("<4qdq")
PACK_STEP = _STEP_STRUCT.pack  # the same row, twenty times faster than through numpy
STEP_BYTES = _STEP_STRUCT.size
FIRST_NS, LAST_NS = -(1 << 61), 3 << 61  # from 73 years ago for 290 years: differences stay within int64
STEP_NUMBER = struct.Struct("<q").unpack_from  # the first thing in such a row
NO_SAMPLES = -1  # in the rows of a running run; null once read


def sample_dtype(columns: list[str]) -> np.dtype[Any]:
    """One appended row of a sensor: two time stamps and one float64 a channel, little endian; NaN is "not read"."""
    import numpy as np

    return np.dtype([("t0_ns", "<i8"), ("t1_ns", "<i8"), *((name, "<f8") for name in columns)])


def channel_names(run: Path, sensor: str) -> list[str]:
    """Column order of a sensor's rows, as channels.json has it."""
    return [channel["id"] for channel in read_channels(run) if channel["sensor"] == sensor]


def read_channels(run: Path) -> list[dict[str, Any]]:
    """Return what channels.json says of each sampled column, while a run is written; readers check it."""
    channels: list[dict[str, Any]] = read_json(run / "channels.json")["channels"]
    return channels


def __getattr__(name: str) -> Any:
    """Return STEP_ROW, the dtype of an appended step: the only name here that needs numpy."""
    if name != "STEP_ROW":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import numpy as np

    globals()[name] = dtype = np.dtype([(column, "<f8" if column == "loss" else "<i8") for column in STEPS_COLUMNS])
    return dtype


# What a probe of ceilings computes in. Of float32: torch's switches let products (and convolutions of a GPU) round to
# fewer digits. "high" and "medium" as in `torch.set_float32_matmul_precision`; "ieee" is without TF32 in convolutions.
PROBED = ("float32", "float32-high", "float32-medium", "float32-ieee", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class Computation:
    """The device and the number format with most FLOPs: "cuda:0", "bfloat16"."""

    device: str
    precision: str

    @property
    def is_probed(self) -> bool:
        """Return whether ceilings are measured in this number format."""
        return self.precision in PROBED


def main_computation(meta: Mapping[str, Any]) -> Computation | None:
    """Return the device and format of most FLOPs; None where no step with FLOPs was profiled with its shapes."""
    recorder = meta.get("recorder")
    stated = recorder.get("flops_by_format") if isinstance(recorder, Mapping) else None
    flops = {
        Computation(str(device), str(precision)): count
        for device, counts in (stated.items() if isinstance(stated, Mapping) else ())
        for precision, count in (counts.items() if isinstance(counts, Mapping) else ())
        if isinstance(count, int | float) and count > 0
    }
    return max(flops, key=lambda computation: flops[computation], default=None)


def calls_in_other_formats(meta: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return op and layer (null outside of any) of what a training computes in other formats than the main one."""
    recorder = meta.get("recorder")
    stated = recorder.get("other_formats") if isinstance(recorder, Mapping) else None
    calls = [call for call in stated if isinstance(call, list) and call] if isinstance(stated, list) else []
    return [(str(call[0]), str(call[1]) if len(call) > 1 else None) for call in calls]
