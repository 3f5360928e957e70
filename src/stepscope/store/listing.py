"""Which runs a store holds, as one frame: from the index where it is up to date, else from the manifests."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.errors import RunError, RunNotFound
from stepscope.runfolder import RunReader
from stepscope.store import manifest as manifests
from stepscope.store.choosing import Choice, chosen
from stepscope.store.facts import FACTS, facts_of_all
from stepscope.store.manifest import MOST_MANIFEST_BYTES, Fact, Manifest
from stepscope.store.place import Place

INDEX = "index.parquet"
FOLDER = "manifests"
COLUMNS: dict[str, Any] = {
    **{"id": pl.String, "tags": pl.List(pl.String), **FACTS},
    **{"bytes": pl.Int64, "files": pl.Int64, "pushed_s": pl.Float64, "digest": pl.String},
    **{"revision": pl.Int64, "folder": pl.String, "manifest": pl.String},
}
_MOST_INDEX_BYTES = 1 << 30


def listed(place: Place, choice: Choice | None = None) -> pl.DataFrame:
    """The runs of a store that are meant, the newest first, columns as `COLUMNS`."""
    return chosen(runs(place), choice or Choice()).sort("started_s", "id", descending=True, nulls_last=True)


def runs(place: Place) -> pl.DataFrame:
    """Every run, columns as `COLUMNS`; of a folder of runs that is no store, its runs, without a manifest."""
    names = [name for name in place.names(FOLDER) if manifests.id_in(name) is not None]
    if not names and place.is_local:
        return _plain_folder(Path(place.root), place.address)
    known = _index(place)
    current = known.filter(pl.col("manifest").is_in(names))
    unread = sorted(set(names) - set(current["manifest"]))
    frame = pl.concat([current, rows_of(read_all(place, unread))]) if unread else current
    return (
        frame.sort("revision", descending=True).unique("id", keep="first")
        if frame["id"].is_duplicated().any()
        else frame
    )


def find(place: Place, run_id: str) -> tuple[str, Manifest]:
    """The latest manifest of a run and the name of its file; RunNotFound where the store holds none."""
    manifests.check_id(run_id)
    names = [name for name in place.names(FOLDER) if manifests.id_in(name) == run_id]
    found = read_all(place, names)
    if not found:
        hint = "stepscope runs list --store ... shows what is there"
        raise RunNotFound(f"the store {place.address} holds no run '{run_id}'", hint)
    return max(found.items(), key=lambda item: item[1].revision)


def read_all(place: Place, names: Iterable[str]) -> dict[str, Manifest]:
    """The manifests in these files; one that is cut off or was just removed is left out."""
    found = {}
    for name in names:
        try:
            manifest = manifests.read(name, place.read(f"{FOLDER}/{name}", MOST_MANIFEST_BYTES))
        except FileNotFoundError:
            continue
        if manifest is not None:
            found[name] = manifest
    return found


def rows_of(found: Mapping[str, Manifest]) -> pl.DataFrame:
    """Rows of the index, columns as `COLUMNS`."""
    rows = [_row(name, manifest) for name, manifest in found.items()]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row", strict=False)


def write_index(place: Place) -> int:
    """Bring the index up to date; returns its number of rows. Harmless where two do it at once: see the package."""
    frame = runs(place)
    if place.is_local and not frame.is_empty() and frame["manifest"].null_count():
        return 0
    buffer = io.BytesIO()
    frame.sort("id").write_parquet(buffer, compression="zstd")
    place.write(INDEX, buffer.getvalue())
    return len(frame)


def _index(place: Place) -> pl.DataFrame:
    """The index as it lies there; empty where it is missing, damaged or of other columns."""
    try:
        frame = pl.read_parquet(io.BytesIO(place.read(INDEX, _MOST_INDEX_BYTES)))
        return frame.select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items())
    except (FileNotFoundError, OSError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=COLUMNS)


def _row(name: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "tags": list(manifest.tags),
        **{fact: _of_type(manifest.facts.get(fact), dtype) for fact, dtype in FACTS.items()},
        **{"bytes": manifest.bytes, "files": len(manifest.files), "pushed_s": manifest.pushed_s},
        **{"digest": manifest.digest, "revision": manifest.revision, "folder": manifest.folder, "manifest": name},
    }


def _of_type(value: Fact, dtype: Any) -> Fact:
    """A fact as its column has it; null for what does not fit (a manifest can say anything)."""
    wanted: dict[Any, tuple[type, ...]] = {pl.String: (str,), pl.Int64: (int,), pl.Float64: (int, float)}
    return value if isinstance(value, wanted[dtype]) and not isinstance(value, bool) else None


def _plain_folder(root: Path, address: str) -> pl.DataFrame:
    if not root.is_dir():
        raise RunNotFound(f"there is no store at '{address}'", "stepscope runs push RUN --store ... makes one")
    found: list[RunReader] = []
    for header in sorted(root.glob("*/run.json")):
        with contextlib.suppress(RunError):  # whatever else lies there is no run
            found.append(RunReader(header.parent))
    nothing = dict.fromkeys(COLUMNS)
    rows = [{**nothing, "id": run.id, "tags": list[str](), **facts, "folder": run.path.name}
            for run, facts in zip(found, facts_of_all(found), strict=True)]  # fmt: skip
    return pl.DataFrame(rows, schema=COLUMNS, orient="row", strict=False)
