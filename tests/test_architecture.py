"""The shape of the house: imports flow one way, names and sizes keep to the rules, the start stays light."""

from __future__ import annotations

import ast
import graphlib
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.patience import HANG_S

SOURCE = Path(__file__).parents[1] / "src" / "stepscope"
FILES = sorted(SOURCE.rglob("*.py"))
HEAVY = {"torch", "polars", "altair", "numpy", "scipy", "vl_convert", "jinja2"}

# The rooms, and what each may import of the others. What everybody may import is not repeated.
FOR_ALL = {
    "errors",
    "fault_isolation",
    "arrays",
    "units",
    "quantities",
    "clock",
    "liveness",
    "files",
    "plugins",
    "request",
    "run_paths",
    "part_names",
    "privacy",
}
MAY_IMPORT = {
    "errors": set[str](),
    "fault_isolation": {"errors"},
    "units": set[str](),
    "arrays": set[str](),
    "quantities": {"units"},
    "clock": set[str](),
    "liveness": set[str](),
    "privacy": set[str](),
    "files": {"liveness"},
    "plugins": {"errors"},
    "request": {"errors", "privacy"},
    "run_paths": {"errors", "files", "part_names"},
    "part_names": set[str](),
    "runfolder": FOR_ALL,
    "workloads": FOR_ALL,
    "simulate": FOR_ALL,
    "record": FOR_ALL | {"runfolder", "simulate"},  # a simulated board follows the process that trains
    "analysis": FOR_ALL | {"runfolder"},
    "report": FOR_ALL | {"runfolder", "analysis"},
    "footprint": FOR_ALL | {"runfolder", "record", "analysis", "workloads"},
    "experiments": FOR_ALL | {"runfolder", "record", "analysis", "workloads", "simulate", "footprint"},
    "integrations": FOR_ALL | {"runfolder", "record", "analysis", "report"},
    "store": FOR_ALL | {"runfolder", "analysis"},
    "importers": FOR_ALL | {"runfolder", "record", "analysis"},
    "cli": FOR_ALL
    | {"runfolder", "record", "analysis", "report", "experiments", "footprint", "workloads", "simulate"}
    | {"integrations", "store", "importers", "api", "__main__"},  # `forecast` starts other commands
    "api": FOR_ALL
    | {"runfolder", "record", "analysis", "report", "experiments", "footprint", "workloads", "simulate"}
    | {"integrations"},
    "__init__": FOR_ALL | {"record", "analysis", "footprint", "store", "importers", "workloads", "simulate", "api"},
    "__main__": FOR_ALL | {"cli"},
    "pytest_plugin": FOR_ALL | {"record"},
}
# Not a dependency when it runs: a type that one room is handed by another, named for the type checker alone.
AGREED = {("record/train.py", "workloads")}
WITHOUT_TORCH = (
    "analysis",
    "report",
    "runfolder",
    "plugins",
    "errors",
    "request",
    "units",
    "clock",
    "__init__",
    "__main__",
)
SAMPLING = [
    path for room in ("sampler", "sensors", "access") for path in sorted((SOURCE / "record" / room).rglob("*.py"))
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


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """Full names of all that a file imports, wherever in the file."""
    package = ["stepscope", *path.relative_to(SOURCE).parts[:-1]]
    found: list[str] = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*parent, *([node.module] if node.module else [])])
            found += [f"{start}.{alias.name}" for alias in node.names]
    return tuple(dict.fromkeys(found))


@cache
def _started(path: Path) -> tuple[str, ...]:
    """Modules that a file starts as processes: the string behind a "-m" in a list or tuple."""
    found: list[str] = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
            found += [str(name) for flag, name in itertools.pairwise(words) if flag == "-m" and isinstance(name, str)]
    return tuple(name for name in found if name.split(".")[0] == "stepscope")


@cache
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
    for imported in sorted(
        {*_imports(path), *(name if "." in name else f"{name}.__main__" for name in _started(path))}
    ):
        target = _own_file(imported)
        if target is None or target == SOURCE / "__init__.py":
            continue
        other = _room(target)
        if other != room and other not in MAY_IMPORT[room] and (_name(path), other) not in AGREED:
            yield f"{_name(path)} -> {_name(target)}: {room} may not import {other}"


def test_imports_flow_one_way() -> None:
    wrong = [arrow for path in FILES for arrow in _arrows(path)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_a_process_that_is_started_counts_as_an_import() -> None:
    started = {name for path in FILES for name in _started(path)}
    assert {"stepscope.record.sampler", "stepscope.experiments.engine.child"} <= started


def test_no_file_imports_at_its_top_what_imports_it() -> None:
    tops = {path: ast.Module([node for node in _tree(path).body if not isinstance(node, ast.If)], []) for path in FILES}
    order = graphlib.TopologicalSorter[Path]()
    for path, top in tops.items():
        kept = [node for node in top.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = [
            f"{node.module}.{alias.name}" for node in kept if isinstance(node, ast.ImportFrom) for alias in node.names
        ]
        order.add(path, *({_own_file(name) for name in names} - {None, path, SOURCE / "__init__.py"}))  # type: ignore[arg-type]
    order.prepare()


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
        ("import stepscope.footprint.real_steps, stepscope.footprint.transforms", {"polars", "scipy", "altair"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement: str, refused: set[str]) -> None:
    script = f"import sys\n{statement}\nprint('imported:', *sorted({refused!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.splitlines()[-1] == "imported:"


def _against_the_style(path: Path) -> Iterator[str]:
    """Every rule that a file breaks."""
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    functions = [node for node in ast.walk(_tree(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    words = {word for part in path.relative_to(SOURCE).with_suffix("").parts for word in part.split("_")}
    if words & REFUSED:
        yield f"is named {', '.join(sorted(words & REFUSED))}, and not after the one thing it is"
    if not (ast.get_docstring(_tree(path)) or (path.name == "__init__.py" and not text.strip())):
        yield "does not say in its docstring what it is"
    if lines > 600:
        yield f"has {lines} lines: more than one thing lives here"
    for function in functions:
        if (function.end_lineno or 0) - function.body[0].lineno >= 50:
            yield f"{function.name} has a body of more than 50 lines"
    for word in ("TODO", "FIXME", "XXX"):
        if word in text:
            yield f"waits for another day: {word}"
    if _room(path) in WITHOUT_TORCH and {name.split(".")[0] for name in _imports(path)} & {"torch", "torchvision"}:
        yield f"imports torch: {_room(path)} reads and draws without it"


def test_every_file_keeps_the_rules_of_style() -> None:
    """One test for all files, which names every offender at once."""
    wrong = [f"{_name(path)} {breach}" for path in FILES for breach in _against_the_style(path)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_nine_files_of_ten_are_below_400_lines() -> None:
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in FILES]
    assert sum(length >= 400 for length in lengths) <= len(lengths) / 10


def test_a_breach_of_style_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    body = "\n".join(["import torch", "def long():", *["    pass"] * 51, "# TODO", *["x = 1"] * 600])
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "page_utils.py").write_text(body, encoding="utf-8")
    assert list(_against_the_style(tmp_path / "report" / "page_utils.py")) == [
        "is named utils, and not after the one thing it is",
        "does not say in its docstring what it is",
        "has 654 lines: more than one thing lives here",
        "long has a body of more than 50 lines",
        "waits for another day: TODO",
        "imports torch: report reads and draws without it",
    ]
    (tmp_path / "report" / "__init__.py").write_text("", encoding="utf-8")
    assert not list(_against_the_style(tmp_path / "report" / "__init__.py"))


# Entry points, whose many settings people write by name, and one that torch's dispatcher calls with its own arguments.
ENTRY_POINTS = {
    "api/training.py measure",
    "footprint/prediction.py fit",
    "record/profile.py __init__",
    "record/dry/flops.py _convolution_backward",
}


def test_no_function_but_an_entry_point_has_more_than_eight_parameters() -> None:
    wide = set()
    for path in FILES:
        for node in ast.walk(_tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if len([name for name in names if name not in ("self", "cls")]) > 8:
                    wide.add(f"{_name(path)} {node.name}")
    assert wide == ENTRY_POINTS


def test_what_the_package_asks_for_is_what_it_imports() -> None:
    project = (SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    asked = "".join(re.findall(r"^(?:dependencies|torch|jax|report|fleet|mcp) = \[.*\]$", project, re.MULTILINE))
    declared = {name.removesuffix("-python") for name in re.findall(r'"([a-z][a-z0-9-]*)>=', asked)}
    roots = {name.split(".")[0] for path in FILES for name in _imports(path)}
    # pytest imports the plug-in that imports it.
    third_party = {name.replace("_", "-") for name in roots - set(sys.stdlib_module_names) - {"stepscope", "pytest"}}
    assert third_party == declared
