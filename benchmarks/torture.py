"""`python -m benchmarks.torture RUN... --cases N`: folders with anything in them, through everything that reads a run.

Each case is a copy of a real run with one to three mutations: a node of a JSON file that is replaced, deleted or nested
without end, a flipped bit, a file that is cut, empty, a folder, a pipe or another, a Parquet column of another type,
with nulls or with numbers that no clock shows. Half of the binary ones have checksums that fit, as an attacker would
leave them. A child process reads it: `text`, `page`, `compare`, `forecast`, every export and the list of `view`. Wrong
is whatever is neither a result nor a StepscopeError: another exception, an abort, more than 30 s, more than 1 GB.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.errors import StepscopeError
from stepscope.runfolder import checksums

SECONDS = 30
MOST_BYTES = 1_000_000_000  # of memory beyond what the libraries map
FILES = ("run.json", "device.json", "channels.json", "model.json", "sources.json", "summary.json", "events.jsonl")
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, 10**400, -(2**70), 1e308, -1e308, 1e-320, 0.5),
    *(
        float("nan"),
        float("inf"),
        "",
        "x",
        "0",
        "-1",
        "nan",
        "../../../etc/passwd",
        "/dev/zero",
        "\x00",
        "\x1b[31m",
        "\x08\x0b\ufffe",
    ),
    *(
        "\ud800",
        "</script><img src=x onerror=alert(1)>",
        "a" * 200_000,
        "[bold]",
        "[/]",
        "{}",
        "%s",
        "{0}",
        "\u202e",
        "🧨" * 50,
    ),
    *([], {}, [[]], [None], {"": None}, [1, "a", None], {"a": {"b": []}}, [{}], [[[]]]),
)


def mutate(folder: Path, draw: random.Random) -> list[str]:
    """Change a copy of a run in one to three places; returns what was done, in words."""
    said = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        kind = draw.choices((_json, _bytes, _file, _column), (8, 3, 2, 4))[0]
        said.append(kind(folder, draw))
    return said


def _json(folder: Path, draw: random.Random) -> str:
    name = draw.choice([name for name in FILES if (folder / name).is_file()])
    path = folder / name
    try:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines() if name.endswith("l") else [text]
        at = draw.randrange(len(lines))
        content = json.loads(lines[at])
    except (ValueError, IndexError, RecursionError):
        return f"{name}: no JSON any more"
    value = draw.choice(NASTY) if draw.random() < 0.9 else "@deep@"
    holder, key, where = _somewhere(content, draw)
    verb = "="
    if holder is None:
        content = value
    elif draw.random() < 0.15:
        del holder[key]
        verb = "deleted, not"
    else:
        holder[key] = value
    lines[at] = json.dumps(content).replace('"@deep@"', "[" * 5_000 + "]" * 5_000)
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    return f"{name}: {where} {verb} {str(value)[:40]!r}"


def _somewhere(content: Any, draw: random.Random) -> tuple[Any, Any, str]:
    """A node of the tree, deeper ones as likely as those at the top: its holder, its key, its path."""
    holder, key, where = None, None, ""
    while isinstance(content, (dict, list)) and content and draw.random() < 0.75:
        holder = content
        key = draw.choice(list(content)) if isinstance(content, dict) else draw.randrange(len(content))
        content, where = content[key], f"{where}.{key}"
    return holder, key, where


def _any_file(folder: Path, draw: random.Random, suffix: str = "") -> Path:
    return draw.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(suffix)))


def _bytes(folder: Path, draw: random.Random) -> str:
    path = _any_file(folder, draw)
    data = bytearray(path.read_bytes())
    match draw.choice(("flip", "flip", "cut", "noise", "append")):
        case "flip" if data:
            for _ in range(draw.choice((1, 1, 8))):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case "cut":
            del data[draw.randrange(len(data) + 1) :]
        case "noise" if data:
            at = draw.randrange(len(data))
            data[at : at + 64] = draw.randbytes(64)
        case _:
            data += draw.randbytes(draw.choice((1, 7, 4096)))
    path.write_bytes(data)
    return f"{path.relative_to(folder)}: bytes{_made_to_fit(folder, path, draw)}"


def _file(folder: Path, draw: random.Random) -> str:
    path = _any_file(folder, draw)
    kind = draw.choice(("gone", "empty", "folder", "pipe", "another", "link"))
    other = _any_file(folder, draw).read_bytes()
    path.unlink()
    match kind:
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "another":
            path.write_bytes(other)
        case "link":
            path.symlink_to("/dev/zero")
    return f"{path.relative_to(folder)}: {kind}"


def _column(folder: Path, draw: random.Random) -> str:
    path = _any_file(folder, draw, ".parquet")
    try:
        frame = pl.read_parquet(path.read_bytes())
    except Exception:  # damaged by an earlier mutation
        return f"{path.name}: no Parquet any more"
    if not frame.width or not frame.height:
        return f"{path.name}: empty"
    name = draw.choice(frame.columns)
    rows = pl.int_range(pl.len()) == draw.randrange(frame.height)
    column = pl.col(name)
    changes: dict[str, Callable[[], pl.DataFrame]] = {
        "text": lambda: frame.with_columns(column.cast(pl.String)),
        "real": lambda: frame.with_columns(pl.lit(1.5).alias(name)),
        "dropped": lambda: frame.drop(name),
        "renamed": lambda: frame.rename({name: "x\x01"}),
        "nulls": lambda: frame.with_columns(pl.when(rows).then(None).otherwise(column).alias(name)),
        "all null": lambda: frame.with_columns(pl.lit(None, dtype=frame.schema[name]).alias(name)),
        "a value": lambda: frame.with_columns(
            pl.when(rows).then(_value(frame, name, draw)).otherwise(column).alias(name)
        ),
        "all of a value": lambda: frame.with_columns(_value(frame, name, draw).alias(name)),
        "no rows": lambda: frame.head(0),
        "shuffled": lambda: frame.sample(fraction=1.0, shuffle=True, seed=draw.randrange(99)),
        "twice": lambda: pl.concat([frame, frame]),
    }
    kind = draw.choice(list(changes))
    try:
        changes[kind]().write_parquet(path)
    except Exception as error:
        return f"{path.name}: {name} cannot be {kind}: {type(error).__name__}"
    return f"{path.relative_to(folder)}: {name} {kind}{_made_to_fit(folder, path, draw)}"


def _value(frame: pl.DataFrame, name: str, draw: random.Random) -> pl.Expr:
    dtype = frame.schema[name]
    if dtype.is_integer():
        low, high = (
            (0, 2**32 - 1)
            if dtype == pl.UInt32
            else (-(2**31), 2**31 - 1)
            if dtype == pl.Int32
            else (-(2**63), 2**63 - 1)
        )
        return pl.lit(draw.choice((low, high, 0, 1)), dtype=dtype)
    if dtype.is_float():
        return pl.lit(draw.choice((1e308, -1e308, float("nan"), float("inf"), 0.0, -1.0)), dtype=dtype)
    return pl.lit(draw.choice(("\x00", "\x1b[2J", "backward", "", "\ufffe", "<b>", "[/]"))).cast(dtype)


def _made_to_fit(folder: Path, path: Path, draw: random.Random) -> str:
    if path.suffix != ".parquet" or draw.random() < 0.5:
        return ""
    checksums.note(folder, path.relative_to(folder).as_posix())
    return ", with its checksum"


def read_everything(folder: Path, base: Path, out: Path) -> list[str]:
    """Call every reader; returns the traceback of each call that ended in what is no StepscopeError."""
    import stepscope
    from stepscope.analysis.compare import compare
    from stepscope.report.exports import discovered
    from stepscope.report.view.listing import Listing

    calls: dict[str, Callable[[], Any]] = {
        "text": lambda: stepscope.text(folder),
        "page": lambda: stepscope.page(folder, out / "page.html"),
        "compare": lambda: stepscope.text(compare([base, folder])),
        "forecast": lambda: stepscope.forecast(folder, steps=1000),
        "list": lambda: Listing(folder.parent).look(),
    }
    for module in discovered().modules:
        name = module.__name__.rpartition(".")[2]
        calls[f"export {name}"] = partial(stepscope.export, folder, name, out / name)
    wrong = []
    for name, call in calls.items():
        began = time.process_time()
        try:
            call()
        except StepscopeError:
            pass
        except BaseException as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "stepscope" in f.filename]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
            wrong.append(f"{name}: {place}: {type(error).__name__}: {str(error)[:200]}")
        if (took := time.process_time() - began) > SECONDS:
            wrong.append(f"{name}: took {took:.0f} s")
    return wrong


def run_case(bases: list[Path], seed: int, kept: Path | None = None) -> tuple[list[str], list[str]]:
    """One case in a child process: what was mutated, and what went wrong."""
    draw = random.Random(seed)
    base = draw.choice(bases)
    with tempfile.TemporaryDirectory(prefix="torture-") as place:
        folder, out = Path(place) / "runs" / base.name, Path(place) / "out"
        shutil.copytree(base, folder)
        out.mkdir()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _case_in_child(folder, base, out, writer, draw)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            content = file.read()
        _, status, used = os.wait4(child, 0)
        said, wrong = (*map(json.loads, content.splitlines()), [], [])[:2]
        if kept is not None:
            shutil.copytree(folder, kept / str(seed), dirs_exist_ok=True, symlinks=True, ignore=_pipes)
        if status:
            wrong.append(f"the process: ended by {signal.Signals(status).name if status < 64 else status}")
        if used.ru_maxrss * 1024 > MOST_BYTES:
            wrong.append(f"the process: took {used.ru_maxrss / 1024:,.0f} MB")
        for path in folder.rglob("*"):
            if path.is_fifo():
                path.unlink()
    return said, wrong


def _pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_fifo()]


def _case_in_child(folder: Path, base: Path, out: Path, writer: int, draw: random.Random) -> None:
    """Mutate and read here: a process that has run a query of polars must not fork."""
    status = 1
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS * 4)
        signal.alarm(SECONDS * 20)  # it waits for ever; a busy machine alone takes a case past a few minutes
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        said = mutate(folder, draw)
        os.write(writer, json.dumps(said).encode() + b"\n")
        os.write(writer, json.dumps(read_everything(folder, base, out)).encode())
        status = 0
    finally:
        os._exit(status)


def main(arguments: list[str] | None = None) -> int:
    """Run the cases of the command line; 1 where one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--keep", type=Path, help="folder that the mutated folders are copied to")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    _import_all()
    places: Counter[str] = Counter()
    failed = 0
    for seed in range(asked.first, asked.first + asked.cases):
        said, wrong = run_case([run.resolve() for run in asked.runs], seed, asked.keep)
        failed += bool(wrong)
        for line in wrong:
            call, _, rest = line.partition(": ")
            if not places[rest[:60]]:
                print(f"{seed}: {'; '.join(said)}\n    {call}: {rest}", flush=True)
            places[rest[:60]] += 1
    print(f"{asked.cases} mutated folders, {failed} with a fault, {len(places)} kinds of fault")
    return 1 if failed else 0


def _import_all() -> None:
    """Import what the children need, so that each begins in milliseconds; no query may run before the fork."""
    from stepscope.report.exports import discovered

    discovered()
    for name in ("altair", "rich.console", "scipy.optimize", "stepscope.analysis.compare", "stepscope.report.html"):
        importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
