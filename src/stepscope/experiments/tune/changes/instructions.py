"""The instructions that oneDNN computes with: narrower ones clock higher on some processors."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.experiments.tune.changes import Change, Facts
from stepscope.experiments.tune.changes.threads import shell


def changes(facts: Facts) -> Iterator[Change]:
    """Yield a cap of AVX2 where the processor has AVX-512."""
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    refused = "" if str(facts["cpu_capability"]).startswith("AVX512") else "the processor has no AVX-512"
    if facts["device"] != "cpu":
        refused = "of the CPU alone"
    elif facts["environment"].get("ONEDNN_MAX_CPU_ISA"):
        refused = "the environment caps them already"
    yield Change(
        "isa=avx2", "oneDNN with AVX2 instead of AVX-512", "instructions", shell(environment),
        "other kernels: the last digits of the loss", at_start=True, environment=environment, refused=refused,
    )  # fmt: skip
