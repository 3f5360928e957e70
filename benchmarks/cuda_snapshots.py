"""The simulated CUDA allocator against GPUs: `python -m benchmarks.cuda_snapshots FILE ...`.

FILE: a pickle of `torch.cuda.memory._dump_snapshot()` with a trace. Going back over the trace from the segments at its
end gives the segments at its start; the simulation starts there, makes the same requests, and what it reserves is
compared with the segments that the GPU gave. Only plain containers, numbers and strings are read from a pickle.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.footprint.cuda_allocator import SMALL, CachingAllocator, Settings, parse_settings, rounded_block_size

_GIVEN = ("segment_alloc", "segment_map")
_TAKEN = ("segment_free", "segment_unmap")


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a snapshot")


@dataclass(frozen=True)
class Row:
    """A recording, B: reserved peak as it was and as simulated, what was given out at most, and the events."""

    name: str
    took: int
    said: int
    allocated: int
    grown: int  # what was reserved at the peak beyond the start: that part is the simulation's own
    said_grown: int
    events: int
    farthest: int  # at any request: the largest difference

    @property
    def error(self) -> float:
        """Of the reserved peak."""
        return self.said / self.took - 1


@dataclass
class _Start:
    """Segments at the start of a trace: (bytes, pool); blocks in use: bytes of each."""

    segments: dict[int, tuple[int, bool]]
    used: dict[int, int]


def _at_start(snapshot: dict[str, Any], trace: list[dict[str, Any]], device: int) -> _Start:
    segments: dict[int, tuple[int, bool]] = {}
    used: dict[int, int] = {}
    for segment in snapshot["segments"]:
        if segment.get("device", 0) != device:
            continue
        segments[segment["address"]] = (segment["total_size"], segment["segment_type"] == "small")
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                used[address] = block["size"]
            address += block["size"]
    for event in reversed(trace):
        action, address, size = event["action"], event.get("addr", 0), event.get("size", 0)
        if action == "alloc":
            used.pop(address, None)
        elif action == "free_completed":
            used[address] = rounded_block_size(size)
        elif action in _GIVEN:
            segments.pop(address, None)
        elif action in _TAKEN:
            segments[address] = (size, size <= 2 * SMALL)
    return _Start(segments, used)


def _filled(start: _Start) -> Iterator[tuple[int, int, bool, list[tuple[int, int]]]]:
    """Each segment with its blocks in use: what follows one and is too small to be a block belongs to it."""
    for address, (size, small) in sorted(start.segments.items()):
        inside = sorted(place for place in start.used if address <= place < address + size)
        ends = [*inside[1:], address + size] if inside else []
        blocks = []
        for place, end in zip(inside, ends, strict=True):
            gap = end - place - start.used[place]
            blocks.append((place, end - place if not small and gap <= SMALL else start.used[place]))
        yield address, size, small, blocks


def replay(name: str, snapshot: dict[str, Any], device: int) -> Row | None:
    """The recording of one device; None where it has no trace."""
    trace = snapshot["device_traces"][device]
    if not any(event["action"] == "alloc" for event in trace):
        return None
    said = str((snapshot.get("allocator_settings") or {}).get("PYTORCH_CUDA_ALLOC_CONF", ""))
    settings = parse_settings(said) if said else Settings()
    start = _at_start(snapshot, trace, device)
    allocator = CachingAllocator(settings)
    for address, size, small, blocks in _filled(start):
        allocator.adopt(address, size, small, blocks)
    first = took = now = sum(size for size, _ in start.segments.values())
    places = {address: address for address in start.used}
    gives_back, farthest = False, 0
    for event in trace:
        action, address, size = event["action"], event.get("addr", 0), event.get("size", 0)
        if action in _GIVEN:
            now += size
        elif action in _TAKEN:
            now -= size
            if not gives_back:
                allocator.release_unused_segments()
        elif action == "alloc":
            places[address] = allocator.allocate(size)
            farthest = max(farthest, abs(allocator.reserved - now))
        elif action == "free_completed":
            allocator.free(places.pop(address))
        gives_back = action in _TAKEN
        took = max(took, now)
    peak = allocator.reserved_peak
    return Row(name, took, peak, allocator.allocated_peak, took - first, peak - first, len(trace), farthest)


def table(rows: list[Row]) -> str:
    """Markdown, with the worst error of those that grew."""
    lines = [
        "| recording | events | given out, MB | reserved, MB | simulated, MB | error | of it in the trace, MB |"
        " simulated, MB | farthest at any request, MB |",
        "| --- |" + " --- |" * 8,
    ]
    lines += [
        f"| {r.name} | {r.events} | {r.allocated / 1e6:.1f} | {r.took / 1e6:.1f} | {r.said / 1e6:.1f} |"
        f" {r.error:+.2%} |"
        f" {r.grown / 1e6:.1f} | {r.said_grown / 1e6:.1f} |"
        f" {r.farthest / 1e6:.1f} |"
        for r in rows
    ]
    worst = max(abs(row.error) for row in rows)
    exact = sum(row.said == row.took for row in rows)
    return "\n".join([*lines, "", f"{len(rows)} recordings: worst {worst:.2%}, to the byte {exact}", ""])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("files", nargs="+", type=Path)
    rows = []
    for path in arguments.parse_args().files:
        try:
            with path.open("rb") as file:
                snapshot = _Plain(file).load()
        except pickle.UnpicklingError as error:
            print(f"{path.name}: not read: {error}")
            continue
        if not isinstance(snapshot, dict) or "device_traces" not in snapshot:
            continue
        for device in range(len(snapshot["device_traces"])):
            row = replay(path.stem, snapshot, device)
            rows += [] if row is None else [row]
    print(table(rows))


if __name__ == "__main__":
    main()
