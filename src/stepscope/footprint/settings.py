"""Combinations of changes that need less memory, applied to a job and written as code.

Only torch is imported here: what measures a training must not add to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from stepscope.analysis.memory.limits import ALLOCATORS
from stepscope.footprint import transforms
from stepscope.record.dry.job import Job, Optimizers, accumulated_step

CHANGES: dict[str, tuple[transforms.Change, str]] = {
    "bf16": (transforms.bf16, "8 bits of precision"),
    "SGD with momentum": (transforms.optimizer_of(torch.optim.SGD, lr=1e-3, momentum=0.9), "another learning rate"),
    "SGD": (transforms.optimizer_of(torch.optim.SGD, lr=1e-3), "another learning rate"),
    "last layers only": (transforms.all_but_last, "the other layers stay as they are"),
}


@dataclass(frozen=True)
class Settings:
    """One combination: passes of a step, modules that run forward again, a change of the training, the allocator."""

    parts: int = 1
    recomputed: tuple[str, ...] = ()
    change: str = ""
    allocator: str = "default"

    def apply(self, job: Job, batch: int) -> tuple[Job, int]:
        """Return the job that trains so, and the samples of one pass."""
        small = batch // self.parts

        def build() -> tuple[nn.Module, Optimizers]:
            model, optimizers = job.build()
            return model, self.change_of(model, optimizers)

        if self.parts == 1 or job.loss is None:
            return replace(job, build=build), small
        step = accumulated_step(job.loss, self.parts, lambda: job.batch(small))
        return replace(job, build=build, step=step), small

    def change_of(self, model: nn.Module, optimizers: Optimizers) -> Optimizers:
        """Change a model in place; the optimizers to train it with."""
        if self.change:
            optimizers = CHANGES[self.change][0](model, optimizers)
        return transforms.checkpointed(self.recomputed)(model, optimizers) if self.recomputed else optimizers

    def code(self, batch: int) -> str:
        """Lines of Python and of the shell that train so."""
        lines = []
        if self.allocator != "default":
            known = ALLOCATORS.get(self.allocator)
            how = f"PYTORCH_CUDA_ALLOC_CONF={self.allocator}" if known is None else known.how
            lines.append(f"# start it with: {how} python ...")
        if self.change:
            lines.append(f"# {self.change}: {CHANGES[self.change][1]}")
        if self.recomputed:
            lines += [
                "from functools import partial",
                "from torch.utils.checkpoint import checkpoint",
                f"for name in {list(self.recomputed)!r}:",
                "    module = model.get_submodule(name)",
                "    module.forward = partial(checkpoint, module.forward, use_reentrant=False)",
            ]
        if self.parts > 1:
            lines += [
                f"# {self.parts} batches of {batch // self.parts} for each update",
                f"(loss / {self.parts}).backward()",
                f"if (number + 1) % {self.parts} == 0:",
                "    optimizer.step()",
                "    optimizer.zero_grad()",
            ]
        return "\n".join(lines)

    @property
    def words(self) -> str:
        """For the table."""
        said = [f"{self.parts} passes"] if self.parts > 1 else []
        said += [f"{len(self.recomputed)} modules recomputed"] if self.recomputed else []
        said += [self.change] if self.change else []
        said += [self.allocator] if self.allocator != "default" else []
        return ", ".join(said) or "as it is"
