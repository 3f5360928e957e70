"""The weights that ship inside the package, trained by the project itself: `python -m benchmarks.pretrained FOLDER`.

FOLDER holds Fashion-MNIST (Debian: dataset-fashion-mnist, in /usr/share/datasets/fashion-mnist). Networks are trained
at their workload's own rate of the optimizer, in batches of 16, on pictures of its training part that do not ship, so
that every picture of `fashion-mnist-6k` is new to them. What is printed is the hash that the reader compares, and the
accuracy on the packaged test pictures.
"""

from __future__ import annotations

import argparse
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepscope import workloads
from stepscope.workloads.contract import Training
from stepscope.workloads.data import packaged
from stepscope.workloads.data.pictures import LabelledImages, Pictures, clothing, idx_tensor, resized_splits

_SHIPPED = 500  # of a class, the first ones
_PLANS = {  # pictures, epochs, optimizer: the workload's own, but for LeNet, whose own rate is for large batches
    "lenet": (20_000, 10, "adam"),
    "resnet8-c32": (20_000, 8, "momentum"),
    "densenet40-4-c32": (10_000, 8, "momentum"),
}


def others(folder: Path, count: int) -> LabelledImages:
    """So many training pictures that do not ship, in the order of the set."""
    images, labels = (
        idx_tensor(gzip.decompress((folder / f"train-{kind}-ubyte.gz").read_bytes()), kind)
        for kind in ("images-idx3", "labels-idx1")
    )
    shipped = torch.cat([torch.nonzero(labels == label).flatten()[:_SHIPPED] for label in range(10)])
    free = torch.ones(len(labels), dtype=torch.bool)
    free[shipped] = False
    chosen = torch.nonzero(free).flatten()[:count]
    return LabelledImages(images[chosen].unsqueeze(1), labels[chosen].long())


def pretrained(name: str, folder: Path) -> Training:
    """Train a workload as planned; it is kept after every epoch."""
    count, epochs, optimizer = _PLANS[name]
    training = workloads.find(name).prepare(16, optimizer, data="fashion-mnist-6k")
    known = clothing()
    part = others(folder, count)
    facts = replace(known.facts, train_size=count)
    shape = training.workload.input_shape
    assert len(shape) == 3
    chosen = resized_splits(Pictures(part, known.test, known.mean, known.std, facts), shape)
    training.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    training = replace(training, splits=chosen)
    epoch = count // training.batch_size
    for steps, batch in enumerate(training.batches(), 1):
        training.step(batch)
        if steps % epoch == 0:
            print(f"{name}: epoch {steps // epoch}, {training.evaluate():.2%} of the test pictures", flush=True)
            _keep(name, training.model.state_dict())
        if steps == epochs * epoch:
            return training
    raise AssertionError("batches go on for ever")


def _keep(name: str, state: dict[str, Tensor]) -> None:
    arrays: dict[str, Any] = {key: value.contiguous().numpy() for key, value in state.items()}
    path = packaged.FOLDER / f"{name}.npz"
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size} bytes, {packaged.arrays_sha256(arrays.values())}", flush=True)


def main() -> None:
    """Train the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=_PLANS, action="append")
    given = parser.parse_args()
    for name in given.only or _PLANS:
        pretrained(name, given.folder)


if __name__ == "__main__":
    main()
