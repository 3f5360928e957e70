"""What `python -m benchmarks.scripts` calls the same: only what differs between bare runs themselves may differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.scripts.compare import same_files, same_text

# In a process of its own: a run waits for, and at last ends, every child of the process that makes it.
ONE_RUN = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
from benchmarks.scripts.process import run
program = Path(sys.argv[1])
print(json.dumps(asdict(run([sys.executable, str(program)], program.parent, os.environ, 900, stop_after="ready"))))
"""

_ONE, _OTHER = "step 1 loss 0.5 in 12 ms\n", "step 1 loss 0.5 in 15 ms\n"


@pytest.mark.parametrize(
    ("bare", "ours", "same"),
    [
        ([_ONE, _ONE], _ONE, True),
        ([_ONE, _OTHER], "step 1 loss 0.5 in 99 ms\n", True),
        ([_ONE, _OTHER], "step 1 loss 0.6 in 12 ms\n", False),
        ([_ONE, _ONE], "step 2 loss 0.5 in 12 ms\n", False),
        (["loss 1, time 8.1ms, mfu 0.01%"] * 2, "loss 1, time 9.3ms, mfu -100.00%", True),
        (["loss 1, time 8.1ms, mfu 0.01%"] * 2, "loss 2, time 8.1ms, mfu 0.01%", False),
        (["Time  0.12 ( 0.15) Loss 1.5"] * 2, "Time  9.12 ( 0.75) Loss 1.5", True),
        ([_ONE, _OTHER], _ONE + "Stepscope\n", False),
        (["a 1\nb 2\n", "b 1\na 2\n"], "b 3\na 4\n", True),
        (["a 1\nb 2\n", "b 1\na 2\n"], "b 3\nb 4\n", False),
        (["y = -1.5 x\n", "y = +1.5 x\n"], "y = +2.5 x\n", True),
        (["red\n", "green\n"], "blue\n", None),
    ],
)
def test_text_is_compared_up_to_what_varies(bare: list[str], ours: str, same: bool | None) -> None:
    assert same_text(bare, ours).same is same


@pytest.mark.parametrize(
    ("bare", "ours", "same"),
    [
        ([{"model.pt": "a"}] * 2, {"model.pt": "a"}, True),
        ([{"model.pt": "a"}] * 2, {"model.pt": "b"}, False),
        ([{"model.pt": "a"}, {"model.pt": "b"}], {"model.pt": "c"}, True),
        ([{"model.pt": "a"}] * 2, {"model.pt": "a", "runs/x": "b"}, False),
        ([{"log.17": "a"}, {"log.18": "b"}], {"log.19": "c"}, True),
        ([{"log.17": "a"}, {"log.18": "b"}], {}, False),
    ],
)
def test_files_are_compared_up_to_what_varies(
    bare: list[dict[str, str]], ours: dict[str, str], same: bool | None
) -> None:
    assert same_files(bare, ours).same is same


def test_a_run_is_ended_by_ctrl_c_after_its_words_and_accounted_with_its_orphans(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'sum(range(10 ** 7))'], start_new_session=True)\n"
        "sys.stdout.write('ready\\n')\n"  # in one piece: the first word that is read ends it
        "sys.stdout.flush()\n"
        "time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", ONE_RUN, str(program)], capture_output=True, text=True, check=True)
    ended = json.loads(done.stdout)
    assert (ended["code"], ended["stdout"], ended["in_time"]) == (130, "ready\n", True)
    assert "KeyboardInterrupt" in ended["stderr"]
    assert ended["cpu_s"] > 0.1
