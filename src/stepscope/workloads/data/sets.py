"""The data sets that workloads are trained on: which there are, fetching them, and whether what is here is whole.

`listed` and `verify` say how things stand; `fetch` downloads. Data lies in $STEPSCOPE_DATA, else in ~/.cache/stepscope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.workloads.data import cache, catalogue, fetching

__all__ = ["fetch", "listed", "verify"]


def listed() -> list[dict[str, Any]]:
    """Every data set: name, present, summary, licence, and how to get it."""
    downloads = [_row(each, cache.present(each), f"stepscope data fetch {each.name}") for each in catalogue.DATA_SETS]
    return [*downloads, *(_row(each, each.present(), each.get) for each in catalogue.PACKAGED)]


def fetch(name: str, progress: Callable[[str, int, int | None], None] = lambda name, done, size: None) -> list[Path]:
    """Download a data set and return its files: resumed where it broke off, kept only with the right checksum.

    progress: told the name and how many bytes are here of how many, None where that is not known. Raises UnknownName,
    MissingDependency without the extra `data`, and DataUnavailable where no mirror gives it.
    """
    return fetching.fetch(catalogue.find(name), progress)


def verify(names: Sequence[str] = ()) -> list[dict[str, str]]:
    """A row for each file of these data sets, or of all that have been fetched: data set, file, and its state.

    The state is "ok" where the checksum holds. Raises UnknownName.
    """
    chosen = [catalogue.find(name) for name in names] or [each for each in catalogue.DATA_SETS if _begun(each)]
    return [
        {"data set": each.name, "file": file, "state": state}
        for each in chosen
        for file, state in cache.verify(each).items()
    ]


def _row(each: Any, present: bool, get: str) -> dict[str, Any]:
    return {"name": each.name, "present": present, "summary": each.summary, "licence": each.licence, "get": get}


def _begun(dataset: cache.DataSet) -> bool:
    """Return whether any file of it is here."""
    return any(cache.path(dataset, file).is_file() for file in dataset.files)
