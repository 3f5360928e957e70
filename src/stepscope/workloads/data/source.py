"""Sources of samples, apart from the workload that trains on them, and what is said of them in every result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.utils.data import Dataset

from stepscope.errors import DataUnavailable, UnknownName

Batch = tuple[Tensor, ...]  # of the same first dimension: samples
DataKind = Literal["real-full", "real-subset", "synthetic"]
_RANK: dict[DataKind, int] = {"real-full": 0, "real-subset": 1, "synthetic": 2}


@dataclass(frozen=True)
class DataFacts:
    """Facts of a data set; only "real-*" data may report accuracy. An emulator has no sizes: they are 0."""

    name: str
    kind: DataKind
    sha256: str  # of the content, not of the file
    licence: str
    origin: str
    train_size: int
    test_size: int


@dataclass(frozen=True)
class Splits:
    """Data sets of tuples of tensors; `train` is null where the training makes its own, `test` without accuracy."""

    train: Dataset[Batch] | None
    test: Dataset[Batch] | None
    facts: DataFacts


def is_always_present() -> bool:
    """Return True: what ships with the package, or is made on the spot, is always there."""
    return True


@dataclass(frozen=True)
class Source:
    """One data set in the form that one workload takes; `fetch` names it for `stepscope data fetch`."""

    name: str
    kind: DataKind
    load: Callable[[], Splits]
    present: Callable[[], bool] = is_always_present
    fetch: str | None = None


def best_present_source(sources: Sequence[Source]) -> Source:
    """The first of the best kind that is on this machine: real and full, then real in part, then synthetic."""
    if not sources:
        raise DataUnavailable(
            "the workload names no data set: its sources are empty", "name one there (docs/add-a-workload.md)"
        )
    here = [source for source in sources if source.present()]
    if not here:
        names = ", ".join(source.name for source in sources)
        raise DataUnavailable(f"none of the data sets is on this machine: {names}", _how_to_get(sources[0]))
    return min(here, key=lambda source: _RANK[source.kind])


def find_source(sources: Sequence[Source], name: str) -> Source:
    """The source of this name; an error says how to get one that is not on this machine."""
    by_name = {source.name: source for source in sources}
    if name not in by_name:
        raise UnknownName("data set", name, by_name)
    if not by_name[name].present():
        raise DataUnavailable(f"the data set '{name}' is not on this machine", _how_to_get(by_name[name]))
    return by_name[name]


def _how_to_get(source: Source) -> str:
    if source.fetch is None:
        return f"install what holds '{source.name}' (docs/data.md)"
    return f"stepscope data fetch {source.fetch}"
