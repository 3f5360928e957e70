from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import stepscope.workloads
from stepscope import workloads
from stepscope.errors import MissingDependency, UsageError
from stepscope.plugins import discover

GROUP = workloads.ENTRY_POINTS


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """A third-party package as pip would leave it: a module and the metadata that names it."""
    (tmp_path / "their_nets.py").write_text(
        "import dataclasses\nfrom stepscope.workloads.convolutional import WORKLOADS as ours\n"
        "WORKLOADS = (dataclasses.replace(ours[0], name='theirs'), dataclasses.replace(ours[0], summary='usurper'))\n"
    )
    facts = tmp_path / "their_package-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{GROUP}]\nnets = their_nets\nbroken = their_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_nets", raising=False)
    return EntryPoint("nets", "their_nets", GROUP)


def test_a_plug_in_adds_workloads_but_takes_no_name_away(plug_in: EntryPoint) -> None:
    assert "theirs" in workloads.names()
    assert workloads.find("lenet").summary != "usurper"
    assert any("the name is taken" in warning for warning in workloads.warnings())


def test_a_plug_in_that_cannot_be_imported_becomes_a_warning(plug_in: EntryPoint) -> None:
    warning = next(warning for warning in workloads.warnings() if "broken" in warning)
    assert "their-package" in warning
    assert "ModuleNotFoundError" in warning


def test_a_plug_in_without_workloads_becomes_a_warning(plug_in: EntryPoint, tmp_path: Path) -> None:
    (tmp_path / "their_nets.py").write_text("NETS = ()\n")
    assert any("names no WORKLOADS" in warning for warning in workloads.warnings())


def test_a_plug_in_whose_workloads_are_none_becomes_a_warning_and_takes_no_other_with_it(
    plug_in: EntryPoint, tmp_path: Path
) -> None:
    (tmp_path / "their_nets.py").write_text("WORKLOADS = ('theirs',)\n")
    assert any("holds a str, which is no Workload" in warning for warning in workloads.warnings())
    assert workloads.find("lenet").name == "lenet"


def test_a_plug_in_that_raises_anything_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explosive.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = discover(stepscope.workloads, GROUP, skip={"contract"}, points=[EntryPoint("boom", "explosive", GROUP)])
    assert [warning for warning in found.warnings if "ZeroDivisionError" in warning]
    assert {"stepscope.workloads.convolutional", "stepscope.workloads.resnet"} <= {m.__name__ for m in found.modules}


def test_a_plug_in_that_exits_or_names_no_module_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("leaves", "leaving", GROUP), EntryPoint("odd", "no module", GROUP)]
    found = discover(stepscope.workloads, GROUP, skip={"contract"}, points=points)
    assert ["leaves" in found.warnings[0], "odd" in found.warnings[1]] == [True, True]
    assert "stepscope.workloads.resnet" in {module.__name__ for module in found.modules}


def test_packages_skipped_files_and_shared_files_are_not_searched() -> None:
    found = {m.__name__.rpartition(".")[2] for m in discover(stepscope.workloads, GROUP, {"contract"}, ()).modules}
    assert not found & {"contract", "data", "_classification"}


def test_without_torch_the_suite_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency) as caught:
        workloads.names()
    assert "stepscope[torch]" in str(caught.value.hint)


OURS = "import dataclasses\nfrom stepscope.workloads.convolutional import WORKLOADS as ours\n"


def test_a_workload_of_a_file_is_found_by_path_and_name(tmp_path: Path) -> None:
    path = tmp_path / "my_nets.py"
    path.write_text(f"{OURS}WORKLOADS = (dataclasses.replace(ours[0], name='mine'),)\n")
    training = workloads.find(f"{path}:mine").prepare(batch=2)
    assert training.workload.name == "mine"
    assert "mine" not in workloads.names()


@pytest.mark.parametrize(
    ("content", "said", "hint"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom", "mend"),
        ("this is no python", "SyntaxError", "mend"),
        ("import sys\nsys.exit(0)", "SystemExit: 0", "mend"),
        ("NETS = ()", "unknown workload of", "WORKLOADS"),
        (f"{OURS}WORKLOADS = ours[0]", "WORKLOADS is a Workload, and no tuple", "a tuple of them"),
        ("WORKLOADS = ('mine',)", "WORKLOADS holds a str, which is no Workload", "a tuple of them"),
        (f"{OURS}WORKLOADS = (dataclasses.replace(ours[0], name='mind'),)", "unknown workload of", "did you mean mind"),
    ],
)
def test_a_file_that_holds_no_such_workload_is_refused(tmp_path: Path, content: str, said: str, hint: str) -> None:
    path = tmp_path / "my_nets.py"
    path.write_text(content)
    with pytest.raises(UsageError, match=said) as caught:
        workloads.find(f"{path}:mine")
    assert hint in str(caught.value.hint)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        workloads.find(f"{tmp_path}/none.py:mine")
