"""Promises of docs/reliability.md and SECURITY.md: each is tied to a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.fabricate import fabricate_run

from stepscope.record.sampler.loop import CHORES_NS
from stepscope.record.settings import FLUSH_EVERY_NS
from stepscope.runfolder import RunReader
from stepscope.runfolder.schema import STEP_ROW

ROOT = Path(__file__).parents[1]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
}


@pytest.mark.parametrize("page", ["docs/reliability.md", "SECURITY.md"])
def test_every_promise_names_a_test_that_exists(page: str) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    promises = [line for line in lines if line.startswith("| ") and not line.startswith(("| promise", "| ---"))]
    promises = [line for line in promises if line.count("|") == 3]
    assert promises
    for line in promises:
        named = re.findall(r"`(test_\w+)`", line)
        assert named, f"no test holds this: {line}"
        assert set(named) <= TESTS, f"{set(named) - TESTS} of {page} do not exist"


def test_the_loss_of_a_kill_is_bounded_by_what_the_code_waits_for() -> None:
    assert FLUSH_EVERY_NS <= 500_000_000
    assert CHORES_NS <= 250_000_000


def test_zeros_that_a_loss_of_power_leaves_are_no_rows(tmp_path: Path) -> None:
    run = fabricate_run(tmp_path, steps=6, power_w=5.0, status=None)
    before = RunReader(run)
    name = str(before.channels[0]["sensor"])
    rows = run / "samples" / f"{name}.rows"
    row = 8 * (2 + sum(channel["sensor"] == name for channel in before.channels))
    samples, steps = before.sensor(name), before.steps
    for path, size in ((rows, row), (run / "steps.rows", STEP_ROW.itemsize)):
        with path.open("ab") as file:
            file.write(bytes(np.zeros(4 * size, dtype=np.uint8)))
    after = RunReader(run)
    assert after.sensor(name).equals(samples)
    assert after.steps.equals(steps)
    assert after.damaged == [f"samples/{name}: 4 of {samples.height + 4} rows", "steps: 4 of 10 rows"]
