"""The shape of the house: imports flow one way, names and sizes keep to the rules, the start stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "stepscope"
FILES = sorted(SOURCE.rglob("*.py"))
HEAVY = {"torch", "polars", "altair", "numpy", "scipy", "vl_convert", "jinja2"}

# The rooms, and what each may import of the others. What everybody may import is not repeated.
FOR_ALL = {"errors", "units", "clock", "plugins", "which_run"}
MAY_IMPORT = {
    "errors": set[str](),
    "units": set[str](),
    "clock": set[str](),
    "plugins": {"errors"},
    "which_run": {"errors"},
    "runfolder": FOR_ALL,
    "workloads": FOR_ALL,
    "simulate": FOR_ALL,
    "record": FOR_ALL | {"runfolder"},
    "analysis": FOR_ALL | {"runfolder"},
    "report": FOR_ALL | {"runfolder", "analysis"},
    "studies": FOR_ALL | {"runfolder", "record", "analysis", "workloads"},
    "integrations": FOR_ALL | {"runfolder", "record", "analysis", "report"},
    "store": FOR_ALL | {"runfolder", "analysis"},
    "importers": FOR_ALL | {"runfolder", "record", "analysis"},
    "commands": FOR_ALL
    | {"runfolder", "record", "analysis", "report", "studies", "workloads", "simulate", "integrations"}
    | {"store", "importers"},
    "public": FOR_ALL
    | {"runfolder", "record", "analysis", "report", "studies", "workloads", "simulate", "integrations"}
    | {"commands", "__main__"},
    "__init__": FOR_ALL | {"record", "analysis", "studies", "store", "importers", "workloads", "simulate", "public"},
    "__main__": FOR_ALL | {"commands"},
    "pytest_plugin": FOR_ALL | {"record"},
}
# Not a dependency when it runs: a type that one room is handed by another, named for the type checker alone.
AGREED = {("record/train.py", "workloads")}
WITHOUT_TORCH = ("analysis", "report", "runfolder", "plugins", "errors", "units", "clock", "__init__", "__main__")
SAMPLING = [
    path
    for room in ("sampler", "sensors", "access", "formats", "characterisation")
    for path in sorted((SOURCE / "record" / room).rglob("*.py"))
]
REFUSED = {"utils", "util", "helpers", "helper", "common", "manager", "handler", "misc", "base", "backend", "trace"}


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _room(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imports(path: Path) -> Iterator[str]:
    """Full names of all that a file imports, wherever in the file."""
    package = ["stepscope", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*parent, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def _own_file(imported: str) -> Path | None:
    """The file of ours behind a full name; None for what is not ours."""
    parts = imported.split(".")
    if parts[0] != "stepscope":
        return None
    for end in range(len(parts), 0, -1):
        place = SOURCE.joinpath(*parts[1:end])
        for found in (place.with_suffix(".py"), place / "__init__.py"):
            if end > 1 and found.is_file():
                return found
    return SOURCE / "__init__.py"


def _arrows(path: Path) -> Iterator[str]:
    """The forbidden ones. `import stepscope` is none: the public API is lazy and pulls nothing in."""
    room = _room(path)
    for imported in sorted(set(_imports(path))):
        target = _own_file(imported)
        if target is None or target == SOURCE / "__init__.py":
            continue
        other = _room(target)
        if other != room and other not in MAY_IMPORT[room] and (_name(path), other) not in AGREED:
            yield f"{_name(path)} -> {_name(target)}: {room} may not import {other}"


def test_imports_flow_one_way() -> None:
    wrong = [arrow for path in FILES for arrow in _arrows(path)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_room_has_its_rule() -> None:
    assert {_room(path) for path in FILES} <= set(MAY_IMPORT)


def test_an_agreed_exception_is_still_needed() -> None:
    used = {(_name(path), _room(file)) for path in FILES for name in _imports(path) if (file := _own_file(name))}
    assert used >= AGREED


def test_a_wrong_arrow_would_be_seen() -> None:
    assert _room(SOURCE / "record" / "sensors" / "x.py") == "record"
    assert "analysis" not in MAY_IMPORT["record"]
    assert _own_file("stepscope.runfolder.RunReader") == SOURCE / "runfolder" / "__init__.py"
    assert _own_file("stepscope.analysis") == SOURCE / "analysis" / "__init__.py"
    assert _own_file("polars") is None


@pytest.mark.parametrize("path", [p for p in FILES if _room(p) in WITHOUT_TORCH], ids=_name)
def test_reading_and_drawing_do_not_know_torch(path: Path) -> None:
    roots = {imported.split(".")[0] for imported in _imports(path)}
    assert not roots & {"torch", "torchvision"}


def test_the_sampling_process_is_standard_library_alone() -> None:
    wrong, seen, waiting = [], set[Path](), list(SAMPLING)
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for imported in _imports(path):
            own = _own_file(imported)
            if own is not None:
                if own != SOURCE / "__init__.py":
                    waiting.append(own)
            elif imported.split(".")[0] not in sys.stdlib_module_names:
                wrong.append(f"{_name(path)} -> {imported}: the sampling process may not import it")
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("import stepscope", HEAVY | {"typer", "rich"}),
        ("import stepscope.record.sampler.loop", HEAVY | {"typer", "rich", "psutil"}),
        ("from stepscope.__main__ import build_app; build_app()", HEAVY),
        ("from stepscope.__main__ import main\ntry: main(['--help'])\nexcept SystemExit: pass", HEAVY),
        ("import stepscope.analysis.run", {"torch"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement: str, refused: set[str]) -> None:
    script = f"import sys\n{statement}\nprint('imported:', *sorted({refused!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "imported:"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_file_is_named_after_the_one_thing_it_is(path: Path) -> None:
    for part in path.relative_to(SOURCE).with_suffix("").parts:
        assert not set(part.split("_")) & REFUSED


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_file_says_in_its_docstring_what_it_is(path: Path) -> None:
    empty = path.name == "__init__.py" and not path.read_text(encoding="utf-8").strip()
    assert empty or ast.get_docstring(_tree(path))


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_file_has_at_most_400_lines_and_the_body_of_a_function_at_most_50(path: Path) -> None:
    functions = [node for node in ast.walk(_tree(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    assert not [f.name for f in functions if (f.end_lineno or 0) - f.body[0].lineno >= 50]


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_no_line_waits_for_another_day(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not [word for word in ("TODO", "FIXME", "XXX") if word in text]


def test_what_the_package_asks_for_is_what_it_imports() -> None:
    project = (SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    asked = "".join(re.findall(r"^(?:dependencies|torch|report|fleet) = \[.*\]$", project, re.MULTILINE))
    declared = {name.removesuffix("-python") for name in re.findall(r'"([a-z][a-z0-9-]*)>=', asked)}
    roots = {name.split(".")[0] for path in FILES for name in _imports(path)}
    # pytest imports the plug-in that imports it.
    third_party = {name.replace("_", "-") for name in roots - set(sys.stdlib_module_names) - {"stepscope", "pytest"}}
    assert third_party == declared
