"""The documentation is true: every command is described, every documented command and program runs."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from tests.report.browser import Browser
from tests.warm_python import WarmPython

import stepscope
from stepscope import runfolder
from stepscope.__main__ import main as stepscope_main
from stepscope.api.requests import STUDIES, StudyRequest
from stepscope.cli import load_commands
from stepscope.errors import UsageError

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)#:]+)\)")
COLUMN = re.compile(r"^\| `(\w+)` \| (\w+) \|", re.MULTILINE)
FEW_STEPS = "12"


def _make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "reference" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("page", "make"), [("cli.md", "cli_page"), ("python.md", "python_page")])
def test_the_reference_is_what_the_code_says_now(page: str, make: str) -> None:
    committed = (DOCS / "reference" / page).read_text(encoding="utf-8")
    assert committed == getattr(_make(), make)(), "run: python docs/reference/make.py"


@pytest.mark.parametrize("name", [command.name for command in load_commands()])
def test_every_command_is_in_the_reference(name: str) -> None:
    assert f"\n## stepscope {name}\n" in (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    assert not [name for name in stepscope.__all__ if name != "__version__" and f"\n## stepscope.{name}\n" not in page]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize(
    ("heading", "schema"),
    [
        ("## steps.parquet", runfolder.STEPS),
        ("## ops/*.parquet", runfolder.OPS),
        ("## model.json", runfolder.MODEL),
    ],
)
def test_the_columns_of_the_run_folder_are_those_that_are_written(heading: str, schema: dict[str, Any]) -> None:
    page = (DOCS / "run-folder.md").read_text(encoding="utf-8")
    part = page.split(f"\n{heading}\n")[1].split("\n## ")[0]
    written = pl.DataFrame(schema=schema).schema
    assert COLUMN.findall(part) == [(name, str(dtype.base_type())) for name, dtype in written.items()]


def test_the_page_of_the_run_folder_knows_every_status_phase_and_schema() -> None:
    page = (DOCS / "run-folder.md").read_text(encoding="utf-8")
    assert ", ".join(runfolder.STATUSES) in page
    assert f"{', '.join(runfolder.PHASES[:-1])} or {runfolder.PHASES[-1]}" in page
    assert f"| {runfolder.SCHEMA} | " in page.split("## Schema history")[1]


def test_the_changelog_has_the_present_version() -> None:
    assert f"\n## {stepscope.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", [PAGES[0], DOCS / "guide.md", DOCS / "guide-tune.md"], ids=lambda page: page.name)
def test_every_documented_command_and_program_runs(page: Path, tmp_path: Path, warm_python: WarmPython) -> None:
    """In order, in one empty folder; a program that begins with `# name.py` is saved under that name instead."""

    def run(*arguments: str) -> None:
        done = warm_python.run(arguments, tmp_path)
        assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stdout}\n{done.stderr}"

    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        name = re.match(r"# (\w+\.py)\n", text)
        if name:
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
        elif language == "python":
            run("-c", text)
        else:
            for line in text.splitlines():
                words = shlex.split(re.sub(r"--steps \d+", f"--steps {FEW_STEPS}", line))
                assert words[0] == "stepscope", f"{page.name}: not a stepscope command: {line}"
                run("-m", *words)


def test_every_study_of_the_guide_can_be_begun_as_it_is_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each command is parsed and checked on this machine, up to its first point: all of them take hours."""
    begun: list[str] = []

    def begin(request: StudyRequest, *_: object, **__: object) -> None:
        begun.append(request.study)
        raise UsageError("begun")

    monkeypatch.setattr("stepscope.api.study.answer_request", begin)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    page = (DOCS / "guide-studies.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(?: {4})?stepscope (study .+)$", page, re.MULTILINE)
    for command in commands:
        assert stepscope_main(shlex.split(command)) == UsageError.exit_code
    assert begun == [command.split()[1] for command in commands]
    assert set(STUDIES) - set(begun) == {"power-modes"}  # which no machine without modes takes


def test_the_front_page_has_the_places_that_its_run_is_written_into() -> None:
    """As docs/images/make.py finds them."""
    front = (DOCS / "index.md").read_text(encoding="utf-8")
    screens = [re.findall(r"```text\n.*?```", page, flags=re.DOTALL) for page in (front, PAGES[0].read_text("utf-8"))]
    assert len(screens[0]) == 1
    assert screens[0] == screens[1]
    assert re.search(r"One training step of LeNet takes \*\*.*?\n\n", front, flags=re.DOTALL)


def test_the_search_of_the_site_works_from_a_folder(tmp_path: Path) -> None:
    """The index is a script, and what asks a worker is answered where the browser starts none."""
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.json").write_text('{"docs": [{"title": "Throttled"}]}', encoding="utf-8")
    runpy.run_path(str(DOCS / "site_pages.py"))["on_post_build"]({"site_dir": str(tmp_path)})
    shutil.copy(DOCS / "assets" / "offline.js", tmp_path)
    answering = "addEventListener('message', (event) => postMessage(event.data.docs[0].title));"
    (tmp_path / "worker.js").write_text(answering, encoding="utf-8")
    page = "<!doctype html><html lang=en><title>t</title><body><script src=offline.js></script>"
    page += "<script src=search/search_index.js></script>"
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    asked = (
        "new Promise((done) => { const worker = new Worker('worker.js');"
        " worker.addEventListener('message', ({ data }) => done(data)); worker.postMessage(__index); })"
    )
    with Browser(tmp_path / "profile") as opened:
        opened.open(tmp_path / "index.html")
        assert opened.run(asked) == "Throttled"
        assert opened.said == []
