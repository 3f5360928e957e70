"""Savings: ways to need less memory; each is simulated on the changed step, none is a rule of thumb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from stepscope.footprint import transforms
from stepscope.record.dry import Job, Optimizers, accumulated_step
from stepscope.record.dry.dry_run import Change, DryRun, Segment

_LEAST_GAIN = 0.005  # of the process's peak: less is not worth a line
_RECOMPUTED_AT_MOST = 0.5  # of the forward FLOPs, for a choice of segments


@dataclass(frozen=True)
class MemorySaving:
    """One way to need less: the job and the batch to simulate, the change of the model, and the price in words."""

    name: str
    job: Job
    batch: int
    change: Change | None
    price: str
    keeps_batch: bool = True  # whether the same way works for another batch


def ways(job: Job, batch: int, plain: DryRun, has_bf16: bool) -> Iterator[MemorySaving]:
    """Every way that applies to this job, the harmless first."""
    keep = partial(MemorySaving, job=job, batch=batch)
    yield keep(name="gradients set to None", change=_gradients_to_none, price="none")
    price = "none; refused where backward needs the input"
    yield keep(name="activations in place", change=transforms.in_place, price=price)
    if _has_pictures(plain):
        price = "none where every layer keeps the format; other layers copy"
        yield keep(name="channels-last", change=transforms.channels_last, price=price)
    yield from _accumulation_savings(job, batch)
    yield from _checkpoint_savings(keep, plain)
    yield from _optimizer_savings(keep)
    if has_bf16:
        yield keep(name="bf16 throughout", change=transforms.bf16, price="8 bits of precision; small updates are lost")
    yield keep(
        name="train the last layers only",
        change=transforms.all_but_last,
        price=f"the weights of the others stay as they were trained; {transforms.BATCH_STATISTICS} move on",
    )
    if _has_linears(plain):
        price = f"only adapters of rank {transforms.RANK} learn: for fine-tuning"
        yield keep(name="LoRA on linear layers", change=transforms.lora, price=price)


def is_worth_showing(before: int, after: int) -> bool:
    """Return whether a way gains enough to be shown."""
    return before - after > _LEAST_GAIN * before


def chosen_segments(segments: tuple[Segment, ...], forward_flops: int) -> list[str]:
    """Modules to run again in backward: most saved bytes for each FLOP first, while at most half is computed twice.

    Modules with inner ones, below which nothing is chosen already; their last op keeps what leaves them.
    """
    most = _RECOMPUTED_AT_MOST * forward_flops
    candidates = sorted(
        (s for s in segments if s.module and s.saved_bytes > 0),
        key=lambda s: -s.saved_bytes / (s.flops + forward_flops / 1000 + 1),
    )
    parents = {segment.module.rpartition(".")[0] for segment in segments}
    chosen: list[str] = []
    spent = 0
    for segment in candidates:
        related = any(_is_module_within(segment.module, c) or _is_module_within(c, segment.module) for c in chosen)
        if segment.module in parents and not related and spent + segment.flops <= most:
            chosen.append(segment.module)
            spent += segment.flops
    return chosen


def _is_module_within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.")


def _accumulation_savings(job: Job, batch: int) -> Iterator[MemorySaving]:
    if job.loss is None:
        return
    for parts in (2, 4, 8):
        if batch % parts or batch // parts < 2:
            continue
        small = batch // parts
        step = accumulated_step(job.loss, parts, partial(job.batch, small))
        price = f"{parts} passes with {small} samples: the same FLOPs in smaller kernels; batch statistics of {small}"
        yield MemorySaving(
            f"batch {small}, {parts} accumulated", replace(job, step=step), small, None, price, keeps_batch=False
        )


def _checkpoint_savings(keep: Callable[..., MemorySaving], plain: DryRun) -> Iterator[MemorySaving]:
    price = "forward of them runs twice; glibc's default heap loses up to half of the gain"
    yield keep(name="checkpoint the repeated blocks", change=transforms.checkpointed_blocks, price=price)
    root_flops = sum(s.flops for s in plain.segments if "." not in s.module)
    chosen = chosen_segments(plain.segments, root_flops)
    if chosen:
        listed = ", ".join(chosen[:4]) + (f" and {len(chosen) - 4} more" if len(chosen) > 4 else "")
        price = f"{listed} run twice: the most bytes a FLOP"
        yield keep(name=f"checkpoint {len(chosen)} chosen layers", change=transforms.checkpointed(chosen), price=price)


def _optimizer_savings(keep: Callable[..., MemorySaving]) -> Iterator[MemorySaving]:
    kinds = (
        ("SGD without momentum", transforms.replace_optimizer(torch.optim.SGD, lr=1e-3)),
        ("SGD with momentum", transforms.replace_optimizer(torch.optim.SGD, lr=1e-3, momentum=0.9)),
    )
    for name, change in kinds:
        yield keep(name=name, change=change, price="another learning rate and schedule; may need more steps")
    adafactor = getattr(torch.optim, "Adafactor", None)  # since torch 2.5
    if adafactor is not None:
        change = transforms.replace_optimizer(adafactor, lr=1e-3)
        yield keep(
            name="Adafactor", change=change, price="second moments by rows and columns only; temporaries in the update"
        )


def _gradients_to_none(_model: nn.Module, optimizers: Optimizers) -> Optimizers:
    for optimizer in optimizers:
        optimizer.zero_grad = partial(_zero_grad_to_none, optimizer.zero_grad)  # type: ignore[method-assign]
    return optimizers


def _zero_grad_to_none(plain: Callable[..., None], set_to_none: bool = True) -> None:
    plain(set_to_none=True)


def _has_pictures(plain: DryRun) -> bool:
    return any(s.op.startswith("aten.convolution") and (s.shape or "").count("x") == 3 for s in plain.log.storages)


def _has_linears(plain: DryRun) -> bool:
    return any(s.op in ("aten.addmm.default", "aten.mm.default") for s in plain.log.storages)
