"""What a list of 10,000 runs costs: python -m benchmarks.many_runs [COUNT].

Copies of a small run with ids of their own are listed as `view` does: its first answer, all answers until each run is
read, the first answer of another process, and of the same one again; and as `runs list` does from the index of a store
with as many. The ratio is against the first answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fabricate import fabricate_run

_VIEW = """
import resource, sys, time
from pathlib import Path
from stepscope.report.view.site import Access, Site
def answered(page):
    body = site.answer(page, {"Host": "localhost"}).body
    assert body.count('"key"') == int(sys.argv[2])
    return body
def spent():
    print(time.process_time() - began, time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
began, wall = time.process_time(), time.perf_counter()
site = Site(Path(sys.argv[1]), Access())
answered("/")
spent()
while "not read yet" in answered("/runs.json"):
    pass
spent()
began, wall = time.process_time(), time.perf_counter()
answered("/")
spent()
"""
_STORE = """
import resource, sys, time
from stepscope.store import listed, open_store
began, wall = time.process_time(), time.perf_counter()
assert len(listed(open_store(sys.argv[1]))) == int(sys.argv[2])
print(time.process_time() - began, time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def main() -> None:
    """Print CPU and wall time of each look, the ratio to the first, and the peak of memory."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as place:
        runs, store = Path(place, "runs"), Path(place, "store")
        _fill(runs, count)
        os.environ["XDG_CACHE_HOME"] = str(Path(place, "cache"))
        first, whole, _ = _looks(_VIEW, runs, count)
        later, _, again = _looks(_VIEW, runs, count)
        _fill_store(store, count)
        (stored,) = _looks(_STORE, store, count)
    print(f"{count:,} runs, {os.cpu_count()} cores\n{'':24}{'CPU, s':>8}{'wall, s':>9}{'ratio':>8}{'peak, MB':>10}")
    rows = {
        "view, first answer": first,
        "view, until all is read": whole,
        "view, next process": later,
        "view, looked at again": again,
        "runs list": stored,
    }
    for name, (cpu, wall, peak) in rows.items():
        print(f"{name:24}{cpu:8.2f}{wall:9.2f}{cpu / first[0]:8.3f}{peak / 1024:10.0f}")


def _fill(runs: Path, count: int) -> None:
    source = fabricate_run(runs, steps=20)
    header = json.loads((source / "run.json").read_text())
    summary = {"steps": 20, "metrics": [{"metric": "step_time", "scope": "run", "value": 1e6 + n} for n in range(400)]}
    (source / "summary.json").write_text(json.dumps(summary))
    for number in range(1, count):
        folder = runs / f"20260101T000000Z-lenet-{number:06x}"
        folder.mkdir()
        clock = {"monotonic_ns": 0, "unix_ns": 1_767_225_600_000_000_000 + number * 10**9}
        (folder / "run.json").write_text(json.dumps({**header, "id": folder.name, "clock": clock}))
        for name in ("summary.json", "steps.parquet", "device.json", "model.json", "channels.json"):
            if (source / name).exists():
                os.link(source / name, folder / name)


def _fill_store(store: Path, count: int) -> None:
    from stepscope.store import manifest as manifests
    from stepscope.store import open_store
    from stepscope.store.index import write_index
    from stepscope.store.manifest import FOLDER, FileEntry, Manifest

    opened = open_store(store)
    (store / FOLDER).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        facts: dict[str, str | int | float | bool | None] = {
            "workload": "lenet",
            "status": "ok",
            "steps": 20,
            "started_s": 1.7e9 + number,
        }
        files = (FileEntry("run.json", 2, f"{number:064x}"),)
        name, content = manifests.to_file(Manifest(f"20260101T000000Z-lenet-{number:06x}", files, facts, (), 0.0, 0))
        (store / FOLDER / name).write_bytes(content)
    write_index(opened)


def _looks(script: str, folder: Path, count: int) -> list[tuple[float, float, int]]:
    command = [sys.executable, "-c", script, str(folder), str(count)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [(float(cpu), float(wall), int(peak)) for cpu, wall, peak in map(str.split, lines)]


if __name__ == "__main__":
    main()
