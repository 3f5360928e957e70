"""Memory of a step: activations that are computed again, and a batch in parts whose gradients add up."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts, Switch

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Targets


def changes(facts: Facts) -> Iterator[Change]:
    """Yield checkpoints around the blocks that a model repeats, and a batch in two and four parts."""
    blocks = "" if facts["blocks"] else "the model repeats no block of layers"
    yield Change(
        "checkpoint", f"activations of {facts['blocks'] or 'no'} blocks computed again in backward", "checkpoint",
        "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        "batch statistics are updated twice a step", _checkpointed, goal="memory", refused=blocks,
    )  # fmt: skip
    for parts in (2, 4):
        refused = "" if facts["divisible"] else "only a step that Stepscope makes itself can be divided"
        if not refused and facts["batch"] % parts:
            refused = f"{facts['batch']} samples are not divisible by {parts}"
        yield Change(
            f"accumulate={parts}", f"the batch in {parts} parts, gradients added up", "accumulate",
            f"for part in batch.chunk({parts}): (loss(part) / {parts}).backward()",
            "batch statistics are of a part of the batch", _accumulated(parts), goal="memory", refused=refused,
        )  # fmt: skip


@contextlib.contextmanager
def _checkpointed(targets: Targets) -> Iterator[None]:
    from torch.utils.checkpoint import checkpoint

    from stepscope.footprint.transforms import blocks

    changed: list[Any] = []
    for model in targets.called:
        names = set(blocks(model))
        for name, module in model.named_modules():
            if name in names and "forward" not in vars(module):
                forward: Any = functools.partial(checkpoint, module.forward, use_reentrant=False)
                module.forward = forward
                changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _accumulated(parts: int) -> Switch:
    @contextlib.contextmanager
    def switch(targets: Targets) -> Iterator[None]:
        before, targets.parts = targets.parts, parts
        try:
            yield
        finally:
            targets.parts = before

    return switch
