"""The sweeps of a fleet on disk: one for each board, each as a local one, so that showing and resuming are the same.

fleet.json                  which boards, and the name under which devices keep the runs of this sweep
boards/<board>/sweep.json   and all else of a sweep (studies/suite/state.py)
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.errors import RunDamaged, SchemaTooNew, UsageError
from stepscope.studies.fleet.hosts import check_name
from stepscope.studies.suite.grid import Entry
from stepscope.studies.suite.state import SweepFolder, write_durably, writing

SCHEMA = 1
_FLEET = "fleet.json"


class FleetFolder:
    """The folder of the sweeps of one fleet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = _read(path)
        self.id = str(content["id"])
        self.boards = {board: SweepFolder(path / "boards" / board) for board in content["boards"]}

    @classmethod
    def create(
        cls, path: Path, boards: Sequence[str], plan: Mapping[str, Any], entries: Sequence[Entry]
    ) -> FleetFolder:
        """Begin; refused where there is a sweep already. Device and versions are told when a board is first met."""
        if is_fleet(path) or (path / "sweep.json").exists():
            go_on = f"go on with it: stepscope suite run --fleet ... --resume --out {path}"
            raise UsageError(f"'{path}' holds a sweep already", go_on)
        for board in boards:
            own = {**plan, "name": f"{plan['name']} on {board}", "device": {}, "versions": {}}
            SweepFolder.create(path / "boards" / check_name("board", board), own, entries)
        with writing(path):
            write_durably(path / _FLEET, {"schema": SCHEMA, "id": secrets.token_hex(8), "boards": list(boards)})
        return cls(path)

    def meet(self, board: str, about: Mapping[str, Any]) -> None:
        """Write down what a board is, the first time that it is met."""
        sweep = self.boards[board]
        if not sweep.plan["device"]:
            sweep.plan.update(device=about["device"], versions=about["versions"])
            with writing(self.path):
                write_durably(sweep.path / "sweep.json", sweep.plan)


def is_fleet(path: Path) -> bool:
    """Whether a folder holds the sweeps of a fleet."""
    return (path / _FLEET).exists()


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads((path / _FLEET).read_text(encoding="utf-8"))
        schema, boards = content["schema"], content["boards"]
    except FileNotFoundError:
        raise UsageError(f"there is no sweep of a fleet in '{path}'", "begin one: leave --resume out") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDamaged(f"'{path / _FLEET}' cannot be read: {error}") from error
    if schema > SCHEMA:
        raise SchemaTooNew(f"'{path}' has schema {schema}; this Stepscope reads up to {SCHEMA}", "update stepscope")
    for board in boards:
        check_name("board", board)
    return dict(content)
