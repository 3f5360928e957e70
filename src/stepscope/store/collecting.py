"""Clearing a store of what no manifest names: half pushes, contents that were replaced, files of removed runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.store import manifest as manifests
from stepscope.store.listing import FOLDER, read_all, write_index
from stepscope.store.manifest import SHORT
from stepscope.store.place import Place

DAY_S = 86400.0
_OURS = re.compile(f"[0-9a-f]{{{SHORT}}}")  # a folder of runs that is no store has others, and keeps them


@dataclass(frozen=True)
class Collected:
    """What was (or would be) removed: folders and manifests, bytes, and what is too young to be judged."""

    removed: tuple[str, ...]
    bytes: int
    too_young: tuple[str, ...]
    runs: int  # that the index has afterwards


def collect(place: Place, older_than_s: float = DAY_S, dry_run: bool = False) -> Collected:
    """Remove what no manifest names and nobody has written to for `older_than_s`: a push may still be going on."""
    names = [name for name in place.names(FOLDER) if manifests.id_in(name) is not None]
    found = read_all(place, names)
    latest = {each.id: each.revision for each in sorted(found.values(), key=lambda each: each.revision)}
    stale = [name for name in names if name not in found or found[name].revision < latest[found[name].id]]
    named = {each.folder for each in found.values() if each.revision == latest[each.id]}
    removed, young, freed = [f"{FOLDER}/{name}" for name in stale], [], 0
    for run_id in place.names("runs"):
        for content in place.names(f"runs/{run_id}"):
            folder = f"runs/{run_id}/{content}"
            if folder in named or _OURS.fullmatch(content) is None:
                continue
            age_s = place.age_s(folder)
            if older_than_s > 0 and (age_s is None or age_s < older_than_s):
                young.append(folder)
                continue
            removed.append(folder)
            freed += sum(place.sizes(folder).values())
    if dry_run:
        return Collected(tuple(removed), freed, tuple(young), len(latest))
    for path in removed:
        place.remove(path, recursive=not path.startswith(FOLDER))
    return Collected(tuple(removed), freed, tuple(young), write_index(place))
