"""Base of the networks that learn to make images: pictures without their labels, and Adam."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from stepscope.workloads import _classification
from stepscope.workloads.contract import Batch, Workload
from stepscope.workloads.data.pictures import Shape


def generator(
    name: str,
    build: Callable[[], nn.Module],
    shape: Shape,
    loss: Callable[[nn.Module, Batch], Tensor],
    **more: object,
) -> Workload:
    """A workload that learns to make images of one size; `more` are further fields of it."""
    return Workload(
        name=name,
        domain="image generation",
        build=build,
        input_shape=shape,
        default_optimizer="adam",
        sources=_classification.sources(shape, classes=10),
        example=_classification.example_of(shape),
        loss=loss,
        **more,  # type: ignore[arg-type]
    )
