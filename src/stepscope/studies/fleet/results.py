"""The results of a fleet: the tables of its boards under one another."""

from __future__ import annotations

import polars as pl

from stepscope.studies.fleet.folder import FleetFolder
from stepscope.studies.suite.results import of_folder, table


def fleet_results(folder: FleetFolder) -> pl.DataFrame:
    """A row for each setting and board: `board`, then the columns of a sweep's table (studies/suite/results.py)."""
    frames = [
        table(of_folder(sweep)).select(pl.lit(board).alias("board"), pl.all()) for board, sweep in folder.boards.items()
    ]
    return pl.concat(frames).sort("workload", "precision", "optimizer", "threads", "device", "batch", "board")
