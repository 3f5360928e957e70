"""Facts for run.json, device.json and model.json that are not measured: versions, settings, the module tree."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import __version__
from stepscope.clock import read_clocks
from stepscope.files import read_json_object
from stepscope.liveness import boot_id, process_identity
from stepscope.privacy import redact_command_line
from stepscope.record import c_allocators
from stepscope.record.device import describe_device, temperatures_and_clocks
from stepscope.record.empty_process import cached_empty_process, installed_version
from stepscope.record.plan import WARMUP_STEPS
from stepscope.record.settings import Metering, Settings

if TYPE_CHECKING:
    from stepscope.record.ops.modules import ModuleRegistry
    from stepscope.record.recorder import OpRecorder


# In lower case, of torch on a CPU; of CUDA and MPS; of their libraries; of C++; of the kernel; of XLA.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "_status_alloc_failed",
    "std::bad_alloc",
    "cannot allocate memory",
    "resource_exhausted",
)


def run_start_facts(settings: Settings, mode: str, pid: int, framework: str) -> dict[str, Any]:
    """Return what run.json states from the beginning of a run of this process."""
    return {
        **process_identity(pid),
        "framework": framework,
        "workload": {"name": settings.name, **settings.facts.get("workload", {})},
        "clock": read_clocks(),
        "warmup_steps": WARMUP_STEPS,
        "recorder": {"mode": mode, "steps_from": settings.steps_from},
        "sampler": {"period_ns": settings.period_ns, "max_disk": settings.metering.max_disk},
        "malloc": allocator_facts(framework),
        **rank_of_process(),
        **metering_facts(settings.metering),
        **process_facts(framework),
        **{key: value for key, value in settings.facts.items() if key != "workload"},
    }


def process_facts(framework: str = "torch") -> dict[str, Any]:
    """Versions, working directory and the command line of this process.

    Nothing of it makes torch set anything up: threads and GPUs are asked for at the end, see `device_json`.
    """
    try:
        cwd: str | None = str(Path.cwd())
    except OSError:  # it was removed
        cwd = None
    return {
        "argv": redact_command_line(sys.argv),
        "cwd": cwd,
        "versions": {
            "stepscope": __version__,
            "python": platform.python_version(),
            framework: str(getattr(sys.modules.get(framework), "__version__", None)),
            "polars": installed_version("polars"),
        },
    }


def device_json(root: str | None, run: Path | None = None) -> dict[str, Any]:
    """device.json; with a run folder, the facts of its start with those of the end beside them.

    GPUs are named at the end, where the training has initialised CUDA: asking earlier would initialise the driver,
    so that a fork breaks and CUDA_VISIBLE_DEVICES is fixed.
    """
    where = Path(root or "/")
    if run is None:
        return {**describe_device(where), "accelerators_torch": _gpus(), "at_start": temperatures_and_clocks(where)}
    facts = read_json_object(run / "device.json") or describe_device(where)
    return {**facts, "accelerators_torch": _gpus(), "at_end": temperatures_and_clocks(where)}


def model_json_rows(
    registry: ModuleRegistry, flops: Mapping[str, tuple[int, int]], update_shares: Mapping[int, float]
) -> list[dict[str, Any]]:
    """Rows of model.json, parents before children; FLOPs are per sample and cover everything below a module.

    Parameters are null where they have no size yet: a lazy module that was never called.
    """
    rows = []
    roots = registry.root_names()
    regions = registry.regions()
    for index, (sizes, (name, kind)) in enumerate(zip(registry.sizes(), registry.names(), strict=True)):
        forward, backward = flops.get(name, (None, None))
        rows.append(
            {
                "module": name,
                "type": kind,
                "parent": None if name in roots else name.rpartition(".")[0],
                "parameters": sizes.parameters,
                "bytes": sizes.bytes,
                "trainable": sizes.trainable,
                "flops_forward": forward,
                "flops_backward": backward,
                "update_share": update_shares.get(index),
                "region": regions.get(index),
            }
        )
    return _parents_first(rows)


def _parents_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A part that was called before the model that it belongs to stands before it in the registry."""
    by_name = {row["module"]: row for row in rows}
    placed: dict[str, dict[str, Any]] = {}

    def place(row: dict[str, Any]) -> None:
        parent = by_name.get(row["parent"])
        if parent is not None and parent["module"] not in placed and parent is not row:
            place(parent)
        placed[row["module"]] = row

    for row in rows:
        if row["module"] not in placed:
            place(row)
    return list(placed.values())


def _gpus() -> list[dict[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    gpus = []
    with contextlib.suppress(RuntimeError, AssertionError):  # a GPU that has failed
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            facts = {"index": index, "name": properties.name, "memory_bytes": properties.total_memory}
            gpus.append({**facts, **_card_identity(properties), **_card_use(torch, index)})
    return gpus


def _card_identity(properties: Any) -> dict[str, str]:
    """What tells the card from others, as the sensors of a card state it: its PCI address, and its UUID's begin."""
    place: Any = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    identities = [] if None in place else ["{:04x}:{:02x}:{:02x}.0".format(*place)]
    uuid = getattr(properties, "uuid", None)  # since torch 2.3 or so
    identities += [] if uuid is None else [str(uuid).removeprefix("GPU-").partition("-")[0]]
    return {"card": " ".join(identities)} if identities else {}


def _card_use(torch: Any, index: int) -> dict[str, bool]:
    """Return whether torch ever had memory of a card that it saw; nothing where its allocator does not tell."""
    try:
        reserved = torch.cuda.memory_stats(index).get("reserved_bytes.all.allocated")
    except (RuntimeError, AssertionError):
        return {}
    return {} if reserved is None else {"used": reserved > 0}


def rank_of_process() -> dict[str, Any]:
    """Rank and size of the group that this process trains in, where it does."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
    elif os.environ.get("RANK", "").isdecimal() and os.environ.get("WORLD_SIZE", "").isdecimal():
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    else:
        return {}
    local = os.environ.get("LOCAL_RANK", "")
    facts = {"rank": rank, "world_size": size, "local_rank": int(local) if local.isdecimal() else None}
    return {**facts, "boot_id": boot_id()}


def metering_facts(metering: Metering) -> dict[str, Any]:
    """Return the part of run.json that the user chose."""
    chosen = {
        "power_model": metering.power_model,
        "simulated": metering.simulated and metering.simulated.partition(",")[0],
        "simulated_settings": (metering.simulated and metering.simulated.partition(",")[2]) or None,
    }
    return {key: value for key, value in chosen.items() if value is not None}


def allocator_facts(framework: str) -> dict[str, Any]:
    """The allocator, and what a process of torch takes that trains nothing, where this device has measured it."""
    stated = c_allocators.current_allocator_facts()
    empty = cached_empty_process(stated["name"]) if framework == "torch" else None
    return {**stated, "empty_process_bytes": None if empty is None else empty.resident}


def overhead_facts(recorder: OpRecorder, span_ns: int, followed_ns: int) -> dict[str, Any]:
    """Return what profiling took of a run of this length: between steps, once, and an event.

    followed_ns: within unprofiled steps, to follow what happens in them.
    """
    event = None if recorder.event_cost is None else recorder.event_cost.facts()
    layer = None if recorder.layers.cost is None else recorder.layers.cost.facts()
    spent = {"paused_ns": recorder.paused_ns, "once_ns": recorder.once_ns, "followed_ns": followed_ns}
    return {**spent, "span_ns": span_ns, "event": event, "layer": layer}


def recording_facts(recorder: OpRecorder, steps_from: str, detected_by: str, loading_ns: int) -> dict[str, Any]:
    """Return what was profiled of the run, what that held in RAM and wrote, and how long data loaders took."""
    plan = recorder.plan
    return {
        "mode": plan.choice.name,
        "steps_from": steps_from,
        "steps_found_by": detected_by,
        "recorded_steps": plan.recorded,
        "known_share": plan.known_share,
        "steps_apart": sorted(recorder.steps_with_details),  # with shapes or allocations
        "flops_by_format": recorder.costs.flops_by_format.facts(),  # of the steps whose shapes were recorded
        "other_formats": recorder.costs.flops_by_format.other_formats([name for name, _ in recorder.modules.names()]),
        "other_shapes": recorder.costs.other_shapes,  # steps whose FLOPs are those of other shapes
        "windows": recorder.windows,
        "lost_windows": recorder.lost_windows,
        "rows": recorder.rows,
        "bytes": recorder.bytes_written,
        "memory": plan.memory,
        "loading_ns": loading_ns,
        "held_bytes": recorder.held_bytes,  # of events, in the largest window
        "reserved_bytes": recorder.memory_state.reserved,  # by device, the most that an allocator held
    }


def status_of(error: BaseException | None) -> tuple[str, str | None]:
    """(status, reason) of a run that ended with this exception."""
    left_in_order = isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))
    if error is None or left_in_order:  # a generator's consumer has seen enough
        return "ok", None
    try:
        text = str(error)
    except Exception:  # an exception of the training's that cannot be shown
        text = ""
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "Ctrl-C"
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.cuda.OutOfMemoryError)
    ran_out = isinstance(error, kinds) or any(words in text.lower() for words in _OUT_OF_MEMORY)
    return ("oom" if ran_out else "failed"), reason
