"""`python -m benchmarks.torture [RUN...] --cases N`: folders with anything in them, through all that reads a run.

Each case is a copy of a run with one to three mutations: a node of a JSON file that is replaced, deleted or nested
without end, a flipped bit, a file that is cut, empty, a folder, a pipe, a link, renamed, swapped with another, a column
(Parquet, or the parts and rows of a run that was not packed) of another type, with nulls or with numbers that no clock
shows, a run that has ended and reads as one that goes on. Half of the binary ones have checksums that fit, as an
attacker would leave them. It is read by `text`, `compare`, `forecast`, the list of `view`, one export, and in one of
32 cases by `page` (with `--all` by all of them). Wrong is whatever is neither a result nor a StepscopeError: another
exception, an abort, more than 30 s, more than 1 GB. Cases are read by child processes, a hundred each: one that dies
costs its case. A fault that costs a part of a report, or one answer with an error that names it, is contained: it is
counted apart. Without RUN, the small runs of `benchmarks.torture_bases` are mutated.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import re
import resource
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from stepscope.errors import AnalysisFailed, StepscopeError
from stepscope.liveness import process_identity
from stepscope.runfolder import checksums, parts

SECONDS = 30
BATCH = 100  # cases of a child process
PAGES = 1 / 32  # share of the cases
MOST_BYTES = 1_000_000_000  # of memory beyond what the libraries map
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


NUMBERS = (0, 1, -1, 2**31, -(2**31), 2**62, -(2**62), 2**63 - 1, -(2**63))
REALS = (0.0, -1.0, 1e308, -1e308, 1e-320, float("nan"), float("inf"), float("-inf"))
TEXTS = ("\x00", "\x1b[2J", "backward", "", "\ufffe", "<b>", "[/]")


def mutate(folder: Path, draw: random.Random) -> list[str]:
    """Change a copy of a run in one to three places; returns what was done, in words."""
    said = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        kind = draw.choices((_json, _bytes, _file, _column, _raw, _alive), (16, 6, 4, 8, 4, 1))[0]
        said.append(kind(folder, draw))
    return said


def _json(folder: Path, draw: random.Random) -> str:
    path = _any_file(folder, draw, ".json", ".jsonl", ".signs")
    name = path.relative_to(folder).as_posix()
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


def _any_file(folder: Path, draw: random.Random, *suffixes: str) -> Path:
    """A file of this kind, or of any where there is none; those at the top as often as all of those below."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in files if path.name.endswith(suffixes)] or files if suffixes else files
    top = [path for path in files if path.parent == folder]
    return draw.choice(top if top and draw.random() < 0.5 else files)


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
    kind = draw.choice(("gone", "empty", "folder", "pipe", "another", "link", "renamed", "swapped"))
    source = _any_file(folder, draw)
    other = source.read_bytes()
    if kind == "swapped":
        source.write_bytes(path.read_bytes())
    elif kind == "renamed":
        path.with_name(draw.choice(_NAMES).format(stem=path.stem, suffix=path.suffix)).write_bytes(path.read_bytes())
    path.unlink()
    match kind:
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "another" | "swapped":
            path.write_bytes(other)
        case "link":
            path.symlink_to("/dev/zero")
    return f"{path.relative_to(folder)}: {kind}"


_NAMES = (
    "x{suffix}",
    "{stem}.1s{suffix}",
    "{stem}.000007{suffix}",
    "{stem}.rows",
    "{stem}.part",
    "-1{suffix}",
    "\n{suffix}",
)


def _column(folder: Path, draw: random.Random) -> str:
    path = _any_file(folder, draw, ".parquet")
    try:
        frame = pl.read_parquet(path.read_bytes())
    except (Exception, pl.exceptions.PanicException):  # damaged by an earlier mutation
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
    except (Exception, pl.exceptions.PanicException) as error:
        return f"{path.name}: {name} cannot be {kind}: {type(error).__name__}"
    return f"{path.relative_to(folder)}: {name} {kind}{_made_to_fit(folder, path, draw)}"


def _raw(folder: Path, draw: random.Random) -> str:
    """Numbers of a run that was not packed: a number of a row, or a column of a part with checksums that fit."""
    path = _any_file(folder, draw, ".rows", ".part")
    data = bytearray(path.read_bytes())
    if path.suffix == ".part":
        table = path.parent.name
        try:
            part = parts.from_bytes(bytes(data), table)
        except (ValueError, KeyError):
            return f"{path.name}: no part any more"
        name = draw.choice(list(part.columns))
        column = part.columns[name].copy()
        if len(column):
            column[slice(None) if draw.random() < 0.3 else draw.randrange(len(column))] = draw.choice(NUMBERS)
        texts = {
            key: [draw.choice(TEXTS) if draw.random() < 0.1 else text for text in part.texts[key]] for key in part.texts
        }
        try:
            path.write_bytes(parts.to_bytes(parts.Part({**part.columns, name: column}, texts), table))
        except (ValueError, LookupError, OverflowError) as error:
            return f"{path.name}: {name} cannot be written: {type(error).__name__}"
        return f"{path.relative_to(folder)}: {name} of the part"
    for _ in range(draw.choice((1, 1, 20))):
        at = draw.randrange(len(data) // 8 + 1) * 8
        number = draw.choice(NUMBERS)
        data[at : at + 8] = struct.pack("<q", number) if draw.random() < 0.5 else struct.pack("<d", draw.choice(REALS))
    path.write_bytes(data)
    return f"{path.relative_to(folder)}: numbers"


def _alive(folder: Path, draw: random.Random) -> str:
    """The run goes on, in this process."""
    path = folder / "run.json"
    if not path.is_file():  # an earlier mutation made it a link to /dev/zero, or a pipe
        return "run.json: no file any more"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**content, "status": "running", **process_identity(os.getpid())}), encoding="utf-8")
    except (OSError, ValueError, TypeError, RecursionError):
        return "run.json: no JSON any more"
    return "run.json: goes on"


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
        return pl.lit(draw.choice(REALS), dtype=dtype)
    return pl.lit(draw.choice(TEXTS)).cast(dtype)


def _made_to_fit(folder: Path, path: Path, draw: random.Random) -> str:
    if path.suffix != ".parquet" or draw.random() < 0.5:
        return ""
    with contextlib.suppress(OSError):  # an earlier mutation left no place for it
        checksums.record_checksums(folder, path.relative_to(folder).as_posix())
    return ", with its checksum"


def read_everything(folder: Path, base: Path, out: Path, draw: random.Random | None = None) -> list[str]:
    """Call every reader; returns each call that ended in what is no StepscopeError, and each fault that was contained.

    draw: a page in one of 32 cases and one of the exports, drawn at random: a tenth of the time.
    """
    import stepscope
    from stepscope.analysis.compare import compare
    from stepscope.report.view.listing import Listing

    opened: list[Any] = [folder]  # read once for all readers, as soon as it can be

    def run() -> Any:
        opened[0] = stepscope.Run(folder)
        return opened[0]

    calls: dict[str, Callable[[], Any]] = {
        "text": lambda: stepscope.text(run(), verbose=draw is not None and draw.random() < 0.5),
        "page": lambda: stepscope.page(opened[0], out / "page.html").read_text(encoding="utf-8"),
        "compare": lambda: stepscope.text(compare([_reference(base), opened[0]])),
        "forecast": lambda: stepscope.forecast(opened[0], steps=1000),
        "list": lambda: Listing(folder.parent).list_runs(),
    }
    names = _export_names()
    for name in names if draw is None else draw.sample(names, 1):
        calls[f"export {name}"] = partial(_export, opened, name, out)
    if draw is not None and draw.random() > PAGES:
        del calls["page"]
    wrong = []
    for name, call in calls.items():
        began = time.process_time()
        try:
            result = call()
            if name in ("text", "compare", "page"):
                wrong += [f"{CONTAINED}{name}: {fault}" for fault in SHOWN_FAULT.findall(result)]
        except AnalysisFailed as error:
            wrong.append(f"{CONTAINED}{name}: {str(error).rpartition(': ')[2]}")
        except StepscopeError:
            pass
        except BaseException as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "stepscope" in f.filename]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
            wrong.append(f"{name}: {place}: {type(error).__name__}: {str(error)[:200]}")
        if (took := time.process_time() - began) > SECONDS:
            wrong.append(f"{name}: took {took:.0f} s")
    return wrong


@cache
def _export_names() -> list[str]:
    from stepscope.report.exports import discover_exports

    return [module.__name__.rpartition(".")[2] for module in discover_exports().modules]


CONTAINED = "contained: "
SHOWN_FAULT = re.compile(r"cannot\s+be\s+shown:\s+(\w+(?:\s+in\s+[\w/.]+:\d+)?);")
# what a report says in place of a part, of a fault: what is damaged is named in a sentence of ours


_REFERENCES: dict[Path, Any] = {}  # of this process


def _reference(base: Path) -> Any:
    """The run that was mutated, analysed once."""
    import stepscope

    if base not in _REFERENCES:
        _REFERENCES[base] = stepscope.Run(base)
    return _REFERENCES[base]


def _export(opened: list[Any], name: str, out: Path) -> None:
    import stepscope

    stepscope.export(opened[0], name, out / name)


@dataclass(frozen=True)
class Cases:
    """The cases of one process: seeds `first`, `first + apart`, ... below `end`."""

    bases: list[Path]
    first: int
    end: int
    apart: int = 1
    kept: Path | None = None
    all_readers: bool = False


def run_cases(cases: Cases) -> Iterator[tuple[int, list[str], list[str], float]]:
    """Yield each seed, what was mutated, and what went wrong; the death of a child process costs one case."""
    seed = cases.first
    while seed < cases.end:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _batch(cases, seed, writer)
        os.close(writer)
        said: list[str] = []
        with os.fdopen(reader, "rb") as file:
            for line in file:
                content = json.loads(line)
                if "said" in content:
                    seed, said = content["seed"], content["said"]
                else:
                    yield seed, said, content["wrong"], content["cpu_s"]
                    seed, said = seed + cases.apart, []
        _, status = os.waitpid(child, 0)
        if status:
            how = signal.Signals(status & 127).name if status & 127 else f"exit {status >> 8}"
            yield seed, said, [f"the process: ended by {how}"], 0.0
            seed += cases.apart


def _batch(cases: Cases, seed: int, writer: int) -> None:
    """Mutate and read here, until the memory has grown: a process that has run a query of polars must not fork."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        for place in range(BATCH):
            if seed + place * cases.apart < cases.end and _resident("VmRSS") < MOST_BYTES / 2:
                _case(cases, seed + place * cases.apart, writer)
        status = 0
    finally:
        os._exit(status)


def _case(cases: Cases, seed: int, writer: int) -> None:
    signal.setitimer(signal.ITIMER_PROF, SECONDS * 4)
    signal.alarm(SECONDS * 20)  # it waits for ever; a busy machine alone takes a case past a few minutes
    draw = random.Random(seed)
    base = draw.choice(cases.bases)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began_s = _resident("VmRSS"), time.process_time()
    with tempfile.TemporaryDirectory(prefix="torture-") as place:
        folder, out = Path(place) / "runs" / base.name, Path(place) / "out"
        shutil.copytree(base, folder)
        out.mkdir()
        said = mutate(folder, draw)
        os.write(writer, json.dumps({"seed": seed, "said": said}).encode() + b"\n")
        wrong = read_everything(folder, base, out, None if cases.all_readers else draw)
        if (peak := _resident("VmHWM")) > MOST_BYTES:
            wrong.append(f"the process: took {peak / 1e6:,.0f} MB, {before / 1e6:,.0f} before")
        if cases.kept is not None:
            shutil.copytree(folder, cases.kept / str(seed), dirs_exist_ok=True, symlinks=True, ignore=_pipes)
    took_s = time.process_time() - began_s
    os.write(writer, json.dumps({"wrong": wrong, "cpu_s": took_s}).encode() + b"\n")


def _resident(what: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_fifo()]


def main(arguments: list[str] | None = None) -> int:
    """Run the cases of the command line; 1 where one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--keep", type=Path, help="folder that the mutated folders are copied to")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="every reader in every case")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    os.environ.pop("STEPSCOPE_FAULTS", None)  # as a user has it
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # tables of a few rows
    _import_all()
    if Path("/dev/shm").is_dir():
        tempfile.tempdir = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="torture-bases-") as place:
        bases = [run.resolve() for run in asked.runs] or _small_runs(Path(place))
        return _run_all(asked, bases)


def _small_runs(out: Path) -> list[Path]:
    """The runs of `benchmarks.torture_bases`, made by a process of their own: no query of polars may precede a fork."""
    command = [sys.executable, "-m", "benchmarks.torture_bases", str(out)]
    return [Path(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def _run_all(asked: argparse.Namespace, bases: list[Path]) -> int:
    end, readers = asked.first + asked.cases, []
    for place in range(asked.processes):
        cases = Cases(bases, asked.first + place, end, asked.processes, asked.keep, asked.all)
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            _report(cases, writer)
        os.close(writer)
        readers.append(os.fdopen(reader, "rb"))
    return 1 if _collect(readers, asked.cases) else 0


def _report(cases: Cases, writer: int) -> None:
    status = 1
    try:
        for case in run_cases(cases):
            os.write(writer, json.dumps(case).encode() + b"\n")
        status = 0
    finally:
        os._exit(status)


def _collect(readers: Sequence[BinaryIO], most: int) -> int:
    """Print each kind of fault once, and how far it is; returns how many cases went wrong or were not run."""
    places: Counter[str] = Counter()
    began, done, failed, contained, took_s = time.monotonic(), 0, 0, 0, 0.0
    with selectors.DefaultSelector() as selector:
        for each in readers:
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if not line:
                    selector.unregister(key.fileobj)
                    continue
                seed, said, wrong, cpu_s = json.loads(line)
                faulty = any(not text.startswith(CONTAINED) for text in wrong)
                done, failed, took_s = done + 1, failed + faulty, took_s + cpu_s
                contained += bool(wrong) and not faulty
                for text in wrong:
                    call, _, rest = text.removeprefix(CONTAINED).partition(": ")
                    call = f"{CONTAINED}{call}" if text.startswith(CONTAINED) else call
                    if not places[rest[:60]]:
                        print(f"{seed}: {'; '.join(said)}\n    {call}: {rest}", flush=True)
                    places[rest[:60]] += 1
                if done % 100 == 0 or done == most:
                    each_s, rate = took_s / done, done / (time.monotonic() - began)
                    faults = f"{failed} with a fault, {contained} with one that was contained, {len(places)} kinds"
                    print(
                        f"{done} mutated folders, {faults}; {each_s:.2f} s of CPU each, {rate:.2f} a second", flush=True
                    )
    return failed + most - done


def _import_all() -> None:
    """Import what the children need, so that each begins in milliseconds; no query may run before the fork."""
    _export_names()
    for name in ("altair", "rich.console", "scipy.optimize", "stepscope.analysis.compare", "stepscope.report.html"):
        importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
