"""Keep a run that goes on small: `python -m stepscope.runfolder.disk_limit RUN`, started by the sampling process.

Closed parts become Parquet, a file at a time and at the lowest priority. With --max-disk the oldest of them are thinned
where all together take more than their share: samples become means with their spread, of steps some blocks stay. A kill
at any moment leaves a readable run: what was made counts as soon as it has its name, and only then is the rest removed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.files import atomic_write, size_of
from stepscope.part_names import STEPS, PartName, parts_in_use, thinned_file_name
from stepscope.runfolder import checksums
from stepscope.runfolder.pack import append_event_once, pack_closed_parts, row_files, write_parquet
from stepscope.runfolder.schema import read_channels
from stepscope.runfolder.thinning import drop_step_blocks, thin_sensor_rows

SAMPLES_SHARE, STEPS_SHARE = 0.35, 0.1  # of the disk that a run may take; rows that are not packed yet take up to 0.3
MOST_MERGED = 24  # parts that a thinned file holds
Thin = Callable[[PartName, pl.DataFrame, int], pl.DataFrame]


@dataclass(frozen=True)
class ThinningLevels:
    """Steps of thinning, one after the other, and the share of the room that each step may take."""

    grains: tuple[int, ...]
    shares: tuple[float, ...]


OF_SAMPLES = ThinningLevels((0, 1, 10, 60, 600), (0.6, 0.25, 0.1, 0.04, 0.01))  # means, s
OF_STEPS = ThinningLevels((0, 4, 16, 64, 256, 1024), (0.5, 0.2, 0.1, 0.1, 0.05, 0.05))  # of so many blocks of steps one


def thin(run: Path, max_disk: int) -> Iterator[PartName]:
    """Thin the oldest files until samples and steps keep to their shares; gives each file that was made."""
    channels: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError):
        channels = read_channels(run)

    def thin_samples(part: PartName, frame: pl.DataFrame, grain: int) -> pl.DataFrame:
        own = [row for row in channels if f"samples/{row.get('sensor')}" == part.stem]
        counters = {str(row["id"]) for row in own if row.get("kind") == "counter"}
        return thin_sensor_rows(frame, [str(row["id"]) for row in own], counters, grain * 1_000_000_000)

    def thin_steps(_part: PartName, frame: pl.DataFrame, grain: int) -> pl.DataFrame:
        return drop_step_blocks(frame, grain)

    yield from _thin(run, int(SAMPLES_SHARE * max_disk), OF_SAMPLES, thin_samples, steps=False)
    yield from _thin(run, int(STEPS_SHARE * max_disk), OF_STEPS, thin_steps, steps=True)


def _thin(run: Path, room: int, ladder: ThinningLevels, make: Thin, steps: bool) -> Iterator[PartName]:
    refused: set[str] = set()  # that cannot be read: they stay as they are
    while True:
        files = _packed_files(run, steps)
        sizes = {part: size_of(run / part.name) for part in files}
        chosen = _files_to_thin(sizes, room, ladder, refused)
        if not chosen:
            return
        coarser = next(grain for grain in ladder.grains if grain > chosen[0].grain)
        for part in chosen:
            thinned_part = _thin_file(run, part, files, coarser, make)
            if thinned_part is None:
                refused.add(part.name)
            else:
                yield thinned_part


def _packed_files(run: Path, steps: bool) -> list[PartName]:
    """The packed files that count, of steps or of samples."""
    files = row_files(run)
    stems = [stem for stem in dict.fromkeys(part.stem for part in files) if (stem == STEPS) == steps]
    named = {stem: parts_in_use(stem, [part.name for part in files]) for stem in stems}
    return [part for parts in named.values() for part in parts if part.packed]


def _files_to_thin(sizes: dict[PartName, int], room: int, ladder: ThinningLevels, refused: set[str]) -> list[PartName]:
    """Return the oldest files of the finest step of the ladder that takes more than its share; none within the room.

    The first part stays as it was for as long as can be: most steps are profiled at the beginning of a run.
    """
    if sum(sizes.values()) <= room:
        return []
    for keep_first in (True, False):
        for share_only in (True, False):
            for grain, share in zip(ladder.grains[:-1], ladder.shares, strict=False):
                there = [part for part in sizes if part.grain == grain and part.name not in refused]
                if share_only and sum(sizes[part] for part in there) <= share * room:
                    continue
                there = [part for part in there if not (keep_first and grain == 0 and part.first == 0)]
                if there:
                    oldest = min(part.first for part in there)
                    return [part for part in there if part.first == oldest]
    return []


def _thin_file(run: Path, part: PartName, files: Sequence[PartName], grain: int, make: Thin) -> PartName | None:
    """Thin a file and join it to the previous one of the same grain; None where it cannot be read."""
    frame = _read(run, part)
    if frame is None:
        return None
    frame = make(part, frame, grain)
    before = [
        other
        for other in files
        if other.stem == part.stem and other.grain == grain and other.last == part.first - 1
        and part.last - other.first < MOST_MERGED
    ]  # fmt: skip
    earlier = _read(run, before[0]) if before else None
    first = part.first
    sources = [part]
    if earlier is not None and earlier.schema == frame.schema:
        frame, first, sources = pl.concat([earlier, frame]), before[0].first, [part, before[0]]
    name = thinned_file_name(part.stem, first, part.last, grain)
    with atomic_write(run / name, durable=True) as target:
        write_parquet(frame, target)
    checksums.record_checksums(run, name)
    for source in sources:
        (run / source.name).unlink(missing_ok=True)
    return PartName(name, part.stem, first, part.last, grain, packed=True)


def _read(run: Path, part: PartName) -> pl.DataFrame | None:
    """The content of a packed file; None where it is not what was written."""
    stated = checksums.read_checksums(run).get(part.name)
    try:
        data = (run / part.name).read_bytes()
        return pl.read_parquet(data) if checksums.matches_checksum(data, stated) else None
    except (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def _note_thinning_once(run: Path, max_disk: int) -> None:
    """Leave one event that says that this run is thinned; the names of its files say where."""
    message = f"what is long ago is thinned, so that the run stays within {max_disk / 1e6:,.0f} MB (--max-disk)"
    event = {"kind": "thinned", "message": message, "source": "keep", "max_disk": max_disk}
    with contextlib.suppress(OSError, ValueError):
        append_event_once(run, '"kind": "thinned"', **event)


def main(argv: Sequence[str] | None = None) -> int:
    """Pack what is closed and thin what is too much; ends early where the process is gone that started this one."""
    parser = argparse.ArgumentParser(prog="python -m stepscope.runfolder.disk_limit", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--max-disk", type=int, help="bytes that the run may take on the disk")
    options = parser.parse_args(argv)
    run, most, starter = options.run.absolute(), options.max_disk, os.getppid()
    work: list[Iterator[Any]] = [pack_closed_parts(run)]
    work += [] if most is None else [thin(run, most)]
    with contextlib.suppress(OSError):  # a disk that refuses: the next part, or the end of the run
        for result in (result for part in work for result in part):
            if result.grain and most is not None:
                _note_thinning_once(run, most)
            if os.getppid() != starter:
                return 1
    return 0


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    raise SystemExit(main())
