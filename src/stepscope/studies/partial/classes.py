"""The data of some classes alone: pre-train on these, train on those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from stepscope.errors import UsageError
from stepscope.workloads.data.source import Batch, Splits


def labels_of(data: Dataset[Batch]) -> Tensor:
    """The class of every sample, [N]; UsageError where samples do not end with one."""
    found = [batch[-1] for batch in DataLoader(data, batch_size=512, num_workers=0)]
    if not found or found[0].dim() != 1 or found[0].is_floating_point():
        raise UsageError("the samples of this workload have no classes", "leave --transfer and --classes out")
    return torch.cat(found)


def halves(classes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(to pre-train on, to train on): the lower and the upper half."""
    ordered = sorted(classes)
    if len(ordered) < 2:
        raise UsageError("one class cannot be divided into two parts", "leave --transfer out")
    return tuple(ordered[: len(ordered) // 2]), tuple(ordered[len(ordered) // 2 :])


def of_classes(splits: Splits, classes: Sequence[int]) -> Splits:
    """The samples of these classes; UsageError where there are none of one of them."""
    train, test = (_part(data, classes) for data in (splits.train, splits.test))
    return Splits(train, test, replace(splits.facts, train_size=len(train or ()), test_size=len(test or ())))


def _part(data: Dataset[Batch] | None, classes: Sequence[int]) -> Subset[Batch] | None:
    if data is None:
        return None
    labels = labels_of(data)
    present = set(labels.tolist())
    absent = sorted(set(classes) - present)
    if absent:
        known = ", ".join(map(str, sorted(present)))
        raise UsageError(f"there is no class {', '.join(map(str, absent))} in the data", f"there are {known}")
    return Subset(data, torch.isin(labels, torch.tensor(list(classes))).nonzero().flatten().tolist())
