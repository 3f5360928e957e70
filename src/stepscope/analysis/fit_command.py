"""The `stepscope fit` that answers, without training, how much memory what was run takes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

_TAKEN_OVER = ("--optimizer", "--threads", "--malloc")  # options that run and fit have in common
_PRECISION = "float32"  # autocast, which a run may be under, is no precision of fit


def fit_command(meta: Mapping[str, Any]) -> str | None:
    """The command line for a run that `stepscope run WORKLOAD` made; None for other runs, of which it is not known."""
    about = meta.get("workload")
    workload: Mapping[str, Any] = about if isinstance(about, Mapping) else {}
    argv, name = [str(word) for word in meta.get("argv") or []], workload.get("name")
    if workload.get("precision") != _PRECISION:
        return None
    if argv[1:2] != ["run"] or name not in argv or not workload.get("batch_size") or "domain" not in workload:
        return None
    words = ["stepscope", "fit", str(name), "--batch", str(workload["batch_size"])]
    for option in _TAKEN_OVER:
        value = _given(argv, option)
        words += [] if value is None else [option, value]
    words += ["--on", "cuda"] if str(workload.get("device")).startswith("cuda") else []
    return shlex.join(words)


def _given(argv: list[str], option: str) -> str | None:
    """The value of an option, given as one word or as two."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else following
    return None
