"""A store of runs: a folder or an address that fsspec opens, with an index that Polars and DuckDB query in place.

    index.parquet                       one row a run; a copy of what the manifests say, for one quick read
    manifests/<id>~<digest>.json        a run is in the store when its manifest is: it is written last
    runs/<id>/<digest>/...              the run folder, file by file, as it was

The manifests are the truth. Two that push at the same time can leave an index that lacks a row; whoever lists
compares it with the names of the manifests and reads what is missing.
"""

from __future__ import annotations

from stepscope.store.index import Choice, listed, runs
from stepscope.store.manifest import find
from stepscope.store.storage import Store, open_store
from stepscope.store.transfer import pull, push, remove, tag
from stepscope.store.upkeep import collect, verify

__all__ = [
    "Choice",
    "Store",
    "collect",
    "find",
    "listed",
    "open_store",
    "pull",
    "push",
    "remove",
    "runs",
    "tag",
    "verify",
]
