"""torch.compile: fewer, larger kernels after a compilation that has to pay back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Targets


def changes(facts: Facts) -> Iterator[Change]:
    """Yield the compilation of the models, in place."""
    refused = "" if facts["compiler"] or facts["device"] == "cuda" else "there is no C++ compiler here"
    if facts["compiled"]:
        refused = "the model is compiled already"
    elif not facts["calls"]:
        refused = "no module of the training is called"
    yield Change(
        "compile", "torch.compile", "compile", "model.compile()", "merged kernels: the last digits of the loss",
        _compiled, at_start=True, refused=refused,
    )  # fmt: skip


@contextlib.contextmanager
def _compiled(targets: Targets) -> Iterator[None]:
    """From its next call on each model is compiled, in place; afterwards its calls are plain ones again."""
    models: list[Any] = list(targets.called)
    before = [model._compiled_call_impl for model in models]
    for model in models:
        model.compile()
    try:
        yield
    finally:
        for model, plain in zip(models, before, strict=True):
            model._compiled_call_impl = plain
