"""A small part of the campaign of `make torture`, each time with other calls: promises of docs/reliability.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.faults import Fault, Say, apart, follow, possible
from tests.patience import HANG_S

followed = pytest.mark.skipif(not possible(), reason="calls of processes cannot be followed here")
ROOT = Path(__file__).parents[1]


@followed
def test_no_kill_failing_disk_or_loss_of_power_breaks_a_promise() -> None:
    chosen = ["training", "sampling process", "packing", "packing in mid-run", "thinning", "sweep", "tune"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kills", "--only", *chosen, "--kills", "0", "--every", "23", "--seed", "11"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"| {scenario} |" in done.stdout for scenario in chosen)


def write(path: Path, synced: bool) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(file, b"x" * 10)
    if synced:
        os.fsync(file)
    os.close(file)


@followed
def test_the_faults_of_the_campaign_are_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "file"
    ended = follow(lambda say: write(path, False), tmp_path, Fault())
    assert [name for name, _ in ended.calls] == ["open", "write"]
    path.unlink()
    assert follow(lambda say: write(path, False), tmp_path, Fault("kill", 2)).status == -9
    assert path.read_bytes() == b""
    assert follow(lambda say: write(path, False), tmp_path, Fault("tear", 2)).status == -9
    assert path.read_bytes() == b"x" * 5
    full = follow(lambda say: write(path, False), tmp_path, Fault("fail", 2, error=28))
    assert "No space left" in str(full.said)


@followed
def test_a_loss_of_power_takes_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    def act() -> list[int]:
        left = []
        for synced in (True, False):
            sizes = set()
            for seed in range(8):
                folder = tmp_path / f"{synced}{seed}"
                folder.mkdir()

                def both(_: Say, folder: Path = folder, synced: bool = synced) -> None:
                    write(folder / "a", synced)
                    write(folder / "b", False)

                follow(both, folder, Fault("power", 4 + synced, seed=seed))
                sizes.add((folder / "a").read_bytes().count(b"x") if (folder / "a").exists() else 0)
            left.append(min(sizes))
        return left

    assert apart(act) == [10, 0]
