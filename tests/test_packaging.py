"""What is shipped: the man page is what the code says, the site leaves no page out, the packages are whole."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from stepscope import __version__
from stepscope.cli import load_commands

ROOT = Path(__file__).parents[1]
MAN = ROOT / "docs" / "man" / "stepscope.1"


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and source archive, as `make package` builds them."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return out


def test_the_man_page_is_what_the_commands_say_now() -> None:
    page = _loaded(ROOT / "docs" / "man" / "make.py").man_page()
    assert MAN.read_text(encoding="ascii") == page, "run: python docs/man/make.py"


@pytest.mark.parametrize("name", [command.name for command in load_commands()])
def test_every_command_is_on_the_man_page(name: str) -> None:
    escaped = name.replace("-", r"\-")
    assert re.search(rf'^\.SS "stepscope {re.escape(escaped)}[ "]', MAN.read_text(encoding="ascii"), re.MULTILINE)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_man_page_is_formatted_without_a_warning() -> None:
    command = ["groff", "-man", "-ww", "-z", str(MAN)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""


def test_every_page_is_on_the_site_once() -> None:
    nav = _loaded(ROOT / "docs" / "site_pages.py").pages()
    shown = [name for part in nav for name in ([part] if isinstance(part, str) else next(iter(part.values())))]
    docs = ROOT / "docs"
    there = [path.relative_to(docs).as_posix() for kind in ("*.md", "*.ipynb") for path in docs.rglob(kind)]
    assert sorted(shown) == sorted(there)
    assert {"reference/cli.md", "reference/python.md"} <= set(shown), "every command and public name is on these"


def test_a_link_out_of_the_pages_is_a_path_on_the_site_and_others_are_left() -> None:
    hook = _loaded(ROOT / "docs" / "site_pages.py").on_page_markdown
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/cli.md"))
    text = "[a](../guide.md) [b](../../examples/x.yml) [c](cli.md#top) ![d](../images/report.png)"
    expected = text.replace("[b](../../examples/x.yml)", "b (`examples/x.yml`)")
    assert hook(text, page=page) == expected


def test_the_wheel_holds_the_code_the_man_page_and_the_entry_point(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        entry = wheel.read(f"stepscope-{__version__}.dist-info/entry_points.txt").decode()
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "stepscope").rglob("*.py")}
    assert not sources - names
    assert f"stepscope-{__version__}.data/data/share/man/man1/stepscope.1" in names
    assert "stepscope/py.typed" in names
    assert "stepscope = stepscope.__main__:main" in entry


def test_the_source_archive_can_be_built_and_tested(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "pyproject.toml",
        "Makefile",
        "mkdocs.yml",
        "constraints.txt",
        "constraints-hashed.txt",
        "docs/man/stepscope.1",
        "docker/x86.Dockerfile",
    }
    assert not wanted - names
    assert "tests/test_packaging.py" in names


def test_archives_that_are_built_again_from_the_source_archive_are_the_same_bytes(built: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for path in source.rglob("*"):
        os.utime(path, (1_800_000_000, 1_800_000_000))
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path / "again")]
    place = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    subprocess.run(command, cwd=source, check=True, capture_output=True, env=place)
    for file in built.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


def _pins(name: str) -> dict[str, set[str]]:
    """The versions of each library in a file of constraints, by its name as indexes spell it."""
    found: dict[str, set[str]] = {}
    for library, version in re.findall(
        r"^([\w.-]+)==([^\s;]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE
    ):
        found.setdefault(re.sub(r"[-_.]+", "-", library).lower(), set()).add(version)
    return found


def test_constraints_with_hashes_are_those_without_and_name_every_library_that_a_run_needs() -> None:
    text = (ROOT / "constraints-hashed.txt").read_text(encoding="utf-8")
    hashed, plain = _pins("constraints-hashed.txt"), _pins("constraints.txt")
    assert not {name for name, versions in hashed.items() if not versions <= plain.get(name, set())}, "run: make hashes"
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(hashed)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries)
    assert "://" not in text, "any index serves these files"
    project = _needed(ROOT / "pyproject.toml")
    assert not {name for name in project if name not in hashed}, "run: make hashes"


def test_every_pin_is_for_the_oldest_python_or_says_that_it_is_not() -> None:
    """So that set-up works there too: a pin that this Python takes may exclude an older one."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.search(r'^requires-python = ">=3\.(\d+)"$', project, re.MULTILINE)
    assert declared is not None
    too_new = []
    for library, version in pins:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            needs = " ".join(importlib.metadata.metadata(library).get_all("Requires-Python") or ())
            least = re.search(r">=?\s*3\.(\d+)", needs)
            if least is not None and int(least[1]) > int(declared[1]):
                too_new.append(f"{library}=={version} needs Python {needs}: give an older Python a pin of its own")
    assert len(pins) > 100
    assert not too_new


def _needed(path: Path) -> set[str]:
    """Names of what the package needs, with the extras that constraints-hashed.txt covers."""
    text = path.read_text(encoding="utf-8")
    lists = [re.search(r"^dependencies = (\[.*\])$", text, re.MULTILINE)]
    covered = ("report", "data", "store", "fleet", "prometheus", "mcp")
    lists += [re.search(rf"^{extra} = (\[.*\])$", text, re.MULTILINE) for extra in covered]
    wanted = [
        line for found in lists if found is not None for line in json.loads(found[1]) if "python_version" not in line
    ]
    return {re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[ ]", line)[0]).lower() for line in wanted}


@pytest.mark.parametrize("name", ["x86", "jetson"])
def test_a_dockerfile_copies_what_there_is_and_replaces_no_torch(name: str) -> None:
    text = (ROOT / "docker" / f"{name}.Dockerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()]
    assert not [path for path in copied if not (ROOT / path).exists()]
    assert {"pyproject.toml", "README.md", "LICENSE", "src", "docs/man"} <= set(copied), "what the build reads"
    asked = set(re.findall(r"\.\[([\w,]+)\]", text)[0].split(","))
    assert not asked & {"torch", "all", "test"}
