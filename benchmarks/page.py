"""What the page of a large run costs: python -m benchmarks.page.

A synthetic run of 1,000 steps, 1 M op calls and 100,000 readings of each sensor, and one of 30,000 op calls with five
rails that are fitted, are written as pages, each in a process of its own; the large one is then opened, zoomed and
sorted in a headless Chromium, where there is one. Bars are of CPU time on a quiet machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.fabricate import MODEL, STEP, Core, Op, every_step, fabricate_run
from tests.report import browser
from tests.report.browser import Browser
from tests.report.stored_runs import simulated_board

_STEPS, _COPIES, _STEP_NS, _READINGS = 1_000, 48, 15_000_000, 100_000
_FEW_STEPS, _FEW_COPIES = 120, 12
_WRITE = """
import re, sys, time
from pathlib import Path
began = time.perf_counter()
from stepscope.analysis.run import Run
from stepscope.report import html
html.write(Run(sys.argv[1]), sys.argv[2])
print(time.perf_counter() - began)
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # of this program, not of its parent
"""


def page(folder: Path) -> Path:
    """Write the page of the large run and say what it took."""
    ops = tuple(_in_block(op, block) for block in range(_COPIES) for op in STEP)
    run = fabricate_run(
        folder, steps=_STEPS, ops=ops, model=_model(), recorded=every_step, power_w=5.0, noise=0.02, gap=(0.4, 0.45),
        period_ns=_STEPS * _COPIES * _STEP_NS // _READINGS, cores=(Core(0.7), Core(0.2)), steps_per_part=200,
    )  # fmt: skip
    count = _STEPS * sum(1 for op in ops for _ in _all(op))
    print(f"page: {count:,} op calls, {_READINGS:,} readings a sensor")
    return _written(run, folder / "page.html", 10)


def page_of_rails(folder: Path) -> Path:
    """Write the page of a run with five fitted rails and say what it took."""
    ops = tuple(_in_block(op, block) for block in range(_FEW_COPIES) for op in STEP)
    run = simulated_board(folder, steps=_FEW_STEPS, ops=ops, model=_model(_FEW_COPIES), recorded=every_step)
    count = _FEW_STEPS * sum(1 for op in ops for _ in _all(op))
    print(f"page: {count:,} op calls, 5 rails")
    return _written(run, folder / "rails.html", 5)


def _written(run: Path, target: Path, bar_s: float) -> Path:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", _WRITE, str(run), str(target)]
    wall_s, peak_kib = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  written in {wall_s:.1f} s ({used_s:.1f} s of CPU; bar {bar_s:g})")
    print(f"  {peak_kib * 1024 / 1e9:.2f} GB (bar 1), {target.stat().st_size / 1e6:.2f} MB (bar 3)")
    return target


def hands(target: Path, folder: Path) -> None:
    """How long the page takes to be ready, to zoom and to sort in a browser."""
    if browser.found() is None:
        print("  no Chromium here: not opened")
        return
    with Browser(folder / "profile") as opened:
        began = time.perf_counter()
        opened.open(target)
        print(f"  ready after {time.perf_counter() - began:.2f} s (bar 1)")
        for what, script in _ACTS.items():
            print(f"  {what}: {max(opened.run(_timed(script)) for _ in range(5)):.0f} ms (bar 200)")
        print(f"  console: {opened.said or 'silent'}")


_ACTS = {
    "sort": "document.querySelector('[data-name=modules] th button').click()",
    "filter": "(() => { const f = document.querySelector('[data-name=operations] input'); f.value = 'mm';"
    " f.dispatchEvent(new Event('input')); })()",
    "icicle zoom": "(() => { const cells = document.querySelectorAll('.icicle .cell');"
    " (cells[1] || cells[0]).click(); })()",
    "anatomy zoom": "document.querySelector('.anatomy .choice button').click()",
}


def _timed(script: str) -> str:
    """An act until the frame after it is drawn, ms."""
    return (
        "new Promise((done) => { const began = performance.now(); " + script + ";"
        "requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0)); })"
    )


def _in_block(op: Op, block: int) -> Op:
    """An op of the synthetic network as that of one of many such networks in a row."""
    module = None if op.module is None else f"blocks.{block}.{op.module}".rstrip(".")
    return replace(op, module=module, calls=tuple(_in_block(one, block) for one in op.calls))


def _model(copies: int = _COPIES) -> tuple[tuple[str, str, str | None, int], ...]:
    modules: list[tuple[str, str, str | None, int]] = [("", "Net", None, 0)]
    for block in range(copies):
        for name, kind, parent, parameters in MODEL:
            above = "" if parent is None else f"blocks.{block}.{parent}".rstrip(".")
            modules.append((f"blocks.{block}.{name}".rstrip("."), kind, above, parameters))
    return tuple(modules)


def _all(op: Op) -> list[Op]:
    return [op, *(inner for one in op.calls for inner in _all(one))]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        page_of_rails(Path(temporary))
        hands(page(Path(temporary)), Path(temporary))
