"""The command that predicts the memory of what was run, with the options that it was run with."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.analysis.memory.limits import fit_command


def meta(*argv: str, **about: Any) -> dict[str, Any]:
    workload = {"name": "lenet", "domain": "vision", "batch_size": 64, "precision": "float32", "device": "cpu", **about}
    return {"argv": ["/bin/stepscope", *argv], "workload": workload}


@pytest.mark.parametrize(
    ("of", "command"),
    [
        (meta("run", "lenet", "--steps", "9"), "stepscope fit lenet --batch 64"),
        (meta("run", "--optimizer=adam", "lenet"), "stepscope fit lenet --batch 64 --optimizer adam"),
        (
            meta("run", "lenet", "--threads", "2", "--malloc", "pinned", device="cuda:0"),
            "stepscope fit lenet --batch 64 --threads 2 --malloc pinned --device cuda",
        ),
        (meta("run", "lenet", precision="bfloat16 (autocast)"), None),
        (meta("run", "my nets.py:mine", name="mine"), None),
        ({**meta("run", "lenet", "--with", "best.toml"), "configuration": {"file": "best.toml"}}, None),
        (meta("run", "train.py", name="Net", domain=None), None),
        (meta("suite", "run", "lenet"), None),
        (meta("run", "lenet", batch_size=None), None),
        ({"argv": ["train.py"], "workload": {"name": "Sequential"}}, None),
        ({}, None),
    ],
)
def test_the_command_repeats_what_was_run(of: dict[str, Any], command: str | None) -> None:
    assert fit_command(of) == command
