"""What importing and listing cost, against what they cannot do without: CPU time of one process, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tests.importers.profiler_json import op, step, write
from tests.store.test_store_of_runs import fill

from stepscope import store
from stepscope.importers import import_file
from stepscope.importers.chrome_events import EventColumns, read_events
from stepscope.store import manifest, open_store


def cpu_s(call: Callable[[], object]) -> float:
    """CPU time of the cheapest of three calls, s."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def large(path: Path, steps: int = 100, ops: int = 100) -> Path:
    """A file of so many op calls, with the shapes that real ones have."""
    shapes = {"Input Dims": [[8, 32], [32, 32], []], "Input type": ["float", "float", "Scalar"], "Sequence number": 5}
    events = []
    for number in range(steps):
        events.append(step(number, number * 1000, 990))
        events += [op(f"aten::op{i % 30}", number * 1000 + i * 9, 8, args={**shapes, "Ev Idx": i}) for i in range(ops)]
    return write(path, events)


def test_importing_costs_a_small_multiple_of_decoding_the_json(tmp_path: Path) -> None:
    path = large(tmp_path / "large.json")
    bare = cpu_s(lambda: json.loads(path.read_bytes()))
    assert cpu_s(lambda: import_file(path, out=tmp_path / "runs")) < 15 * bare + 0.3


def test_what_is_kept_of_an_event_is_a_hundred_bytes(tmp_path: Path) -> None:
    caught = EventColumns()
    read_events(large(tmp_path / "large.json", 10), caught.take)
    kept = sum(len(column) * column.itemsize for column in caught.columns.values())
    assert len(caught.columns["t0"]) == 10 * 101
    assert kept <= 100 * 10 * 101


def test_listing_by_the_index_costs_a_small_part_of_reading_the_manifests(tmp_path: Path) -> None:
    place = open_store(tmp_path / "store")
    fill(place, 300)
    names = manifest.manifest_names(place)
    begin = time.process_time()
    assert len(manifest.read_manifests(place, names)) == 300
    assert cpu_s(lambda: store.listed(place)) < 0.5 * (time.process_time() - begin)
