"""The table of the lab: a row a check, kept as JSON by each part and printed as text or Markdown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One check: the scene it belongs to, what must hold, whether it did, and what was seen."""

    scene: str
    what: str
    holds: bool
    seen: str


def write_rows(path: Path, part: str, rows: Sequence[Row]) -> None:
    """Keep the rows of a part, and print them."""
    path.write_text(json.dumps({"part": part, "rows": [asdict(row) for row in rows]}, indent=1), encoding="utf-8")
    for row in rows:
        sys.stdout.write(f"{'ok  ' if row.holds else 'FAIL'} {row.scene}: {row.what}: {row.seen}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows of all parts as one Markdown table; 0 where all hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="+")
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in parser.parse_args(argv).rows]
    told = f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[2]:.0f}"
    sys.stdout.write(f"Made by `make lab` on {datetime.now(timezone.utc).date()}: {told}.\n\n")
    sys.stdout.write("| part | scene | check | holds | seen |\n| --- | --- | --- | --- | --- |\n")
    rows = [(part["part"], Row(**row)) for part in parts for row in part["rows"]]
    for part, row in rows:
        sys.stdout.write(f"| {part} | {row.scene} | {row.what} | {'yes' if row.holds else '**no**'} | {row.seen} |\n")
    return 0 if all(row.holds for _, row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
