"""Changing what a store says of a run, and taking runs out of it."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.store import manifest as manifests
from stepscope.store.listing import FOLDER, find, write_index
from stepscope.store.place import Place
from stepscope.store.sending import save


def tag(
    place: Place, run_ids: Iterable[str], add: Iterable[str] = (), drop: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Add and drop tags of runs; returns the tags of each. RunNotFound where one is not there."""
    add, drop = tuple(add), tuple(drop)
    tags = {}
    try:
        for run_id in run_ids:
            name, manifest = find(place, run_id)
            new = manifests.tagged(manifest, add, drop)
            if new.tags != manifest.tags:
                save(place, new, [name])
            tags[run_id] = new.tags
    finally:
        write_index(place)
    return tags


def remove(place: Place, run_ids: Iterable[str]) -> list[str]:
    """Take runs out of a store: the manifest first, so that no run is listed whose files are going."""
    removed = []
    try:
        for run_id in run_ids:
            find(place, run_id)
            for name in place.names(FOLDER):
                if manifests.id_in(name) == run_id:
                    place.remove(f"{FOLDER}/{name}")
            place.remove(f"runs/{run_id}", recursive=True)
            removed.append(run_id)
    finally:
        write_index(place)
    return removed
