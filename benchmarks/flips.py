"""`python -m benchmarks.flips RUN [CASES]`: a bit flipped, a file cut or swapped, all over a packed run.

Each file of the run in turn, copied with one damage, is read as a whole. Counted: was the file named, and how many
tables (steps, operators, each sensor, ...) are not what they were. Printed by name: what was not named, or cost more
than one table.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from stepscope.errors import StepscopeError
from stepscope.runfolder import RunReader

KINDS = ("flip", "flip", "cut", "swap")
_DERIVED = (".cache", "ranks", "summary.json", "truth.npz")  # computed anew, runs of their own, or no part of a run


def tables(run: RunReader) -> dict[str, int]:
    """Return how much there is of everything that a run holds."""
    found = {"steps": run.steps.height, "ops": run.ops.height, "layers": run.layer_calls.height}
    found |= {"memory": run.memory_events.height, "events": len(run.events), "model": run.model.height}
    found |= {"sources": run.sources.height, "device": len(str(run.device)), "header": len(str(run.meta))}
    sensors = {str(channel["sensor"]) for channel in run.channels}
    return found | {f"sensor {name}": run.sensor(name).height for name in sensors}


def damaged(data: bytes, kind: str, alike: list[Path], draw: random.Random) -> bytes | None:
    """Return the content of a file with one damage; None where there is no file to swap it with."""
    match kind:
        case "flip":
            at = draw.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        case "cut":
            return data[: draw.randrange(len(data))]
    return draw.choice(alike).read_bytes() if alike else None


def main() -> None:
    base, cases = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 400
    whole = tables(RunReader(base))
    files = [path.relative_to(base) for path in sorted(base.rglob("*")) if path.is_file() and path.stat().st_size]
    files = [name for name in files if not {*name.parts} & {*_DERIVED}]
    draw, counts = random.Random(1), Counter[str]()
    for case in range(cases):
        name, kind = files[case % len(files)], KINDS[case // len(files) % len(KINDS)]
        alike = [base / other for other in files if other.parent == name.parent != Path() and other != name]
        content = damaged((base / name).read_bytes(), kind, alike, draw)
        if content is None:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = shutil.copytree(base, Path(place) / base.name)
            (folder / name).write_bytes(content)
            try:
                run = RunReader(folder)
                now = tables(run)
                named = any(name.as_posix() in said for said in run.damaged_files())
            except StepscopeError as error:
                now, named = {"header": 0}, name.name in str(error)
        lost = [table for table in whole if now.get(table) != whole[table]]
        cost = "the run" if now == {"header": 0} else "nothing" if not lost else "one" if len(lost) == 1 else "more"
        counts[f"{kind}: {'named' if named else 'NOT NAMED'}, costs {cost}"] += 1
        if not named or cost in ("more", "the run"):
            print(f"{kind} of {name}: {'named' if named else 'NOT NAMED'}, costs {cost}")
    for said, count in sorted(counts.items()):
        print(f"{count:6d}  {said}")


if __name__ == "__main__":
    main()
