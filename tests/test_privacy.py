"""What is to be left out is in no file, page, store or export: words are planted, and looked for afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fabricate import fabricate_run
from tests.patience import HANG_S
from tests.store.command_line import exit_code

from stepscope import privacy, store
from stepscope.liveness import start_time
from stepscope.runfolder import RunReader, RunWriter

ARGUMENT, USER = "argument4711", "user4711"


@pytest.fixture(autouse=True)
def nothing_is_left_out_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(privacy.VARIABLE, "")  # what an option sets is undone after the test


def planted(out: Path) -> Path:
    """A run of another version and machine that says all of it, with a page beside it that does too."""
    run = fabricate_run(out)
    header = json.loads((run / "run.json").read_text())
    header |= {"argv": ["train.py", "--name", ARGUMENT], "script": f"/home/{USER}/{ARGUMENT}.py"}
    header |= {"cwd": f"/home/{USER}/work", "status": "failed", "reason": f"no file /home/{USER}/data"}
    (run / "run.json").write_text(json.dumps(header))
    with (run / "events.jsonl").open("a") as events:
        events.write(json.dumps({"t_ns": 1, "kind": "note", "source": "session", "message": f"/home/{USER}/x"}) + "\n")
    (run / "report.html").write_text(f"{ARGUMENT} {USER}")
    rank = RunWriter.rank(run, 1)
    (rank.path / "run.json").write_text(json.dumps({**header, "id": f"{run.name}/ranks/1"}))
    return run


def found_in(folder: Path, *words: str) -> list[str]:
    files = [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files for word in words if word.encode() in path.read_bytes()]


@pytest.mark.parametrize("to", ["perfetto", "chrome", "csv", "parquet", "latex", "speedscope", "json"])
def test_no_export_says_what_is_to_be_left_out(tmp_path: Path, to: str) -> None:
    run, out = planted(tmp_path / "runs"), tmp_path / f"export-{to}"
    assert exit_code(["export", str(run), "--to", to, "--out", str(out), "--no-argv", "--no-names"]) == 0
    assert found_in(out, ARGUMENT, USER) == []


def test_a_page_does_not_say_what_is_to_be_left_out(tmp_path: Path) -> None:
    run, page, plain = planted(tmp_path / "runs"), tmp_path / "page.html", tmp_path / "plain.html"
    assert exit_code(["report", str(run), "--html", "--out", str(plain)]) == 0
    assert found_in(plain, ARGUMENT)
    assert exit_code(["report", str(run), "--html", "--out", str(page), "--no-argv", "--no-names"]) == 0
    assert found_in(page, ARGUMENT, USER) == []


def test_a_push_leaves_out_what_is_to_be_left_out_and_changes_nothing_here(tmp_path: Path) -> None:
    run, place = planted(tmp_path / "runs"), tmp_path / "store"
    before = (run / "run.json").read_bytes()
    (run.parent / f".push-{2**30}-77-killed" / run.name).mkdir(parents=True)
    alive = run.parent / f".push-{os.getpid()}-{start_time(os.getpid()) or 0}-another"
    alive.mkdir()
    for _ in range(2):  # the second finds the run there
        assert exit_code(["runs", "push", str(run), "--store", str(place), "--no-argv", "--no-names"]) == 0
    assert found_in(place, ARGUMENT, USER) == []
    assert (run / "run.json").read_bytes() == before
    assert [path.name for path in run.parent.iterdir() if path != alive] == [run.name]
    assert alive.exists()
    (pulled,) = store.pull(store.open_place(place), [run.name], tmp_path / "pulled")
    assert not RunReader(pulled).damaged
    assert RunReader(pulled).steps.equals(RunReader(run).steps)
    assert RunReader(pulled).ops.height == RunReader(run).ops.height > 0


def test_a_push_redacts_the_parts_of_other_processes_too(tmp_path: Path) -> None:
    run = planted(tmp_path / "runs")
    rank = run / "ranks/1/run.json"
    rank.write_text(json.dumps({**json.loads(rank.read_text()), "argv": ["train.py", "--api-key", "hunter2"]}))
    store.push(store.open_place(tmp_path / "store"), [run])
    assert found_in(tmp_path / "store", "hunter2") == []


def test_one_kind_is_left_out_and_the_other_stays(tmp_path: Path) -> None:
    run = planted(tmp_path / "runs")
    privacy.withhold("argv")
    assert "argv" not in RunReader(run).meta
    assert USER in RunReader(run).meta["cwd"]
    privacy.withhold("names")
    assert RunReader(run).meta["reason"] == "no file ~/data"


def test_what_a_writer_is_told_to_leave_out_is_in_no_file(tmp_path: Path) -> None:
    privacy.withhold("argv", "names")
    writer = RunWriter.create(tmp_path, "private")
    writer.update(argv=[ARGUMENT], script=f"/home/{USER}/{ARGUMENT}", cwd=f"/home/{USER}", host=USER, seed=7)
    writer.device({"board": "Jetson TX2", "mounted": f"/Users/{USER}/disk"})
    writer.sources({"files": [f"/home/{USER}/train.py"]})
    writer.event("note", f"cannot open '/home/{USER}/x'")
    writer.close("failed", f"FileNotFoundError: /home/{USER}/x")
    assert found_in(writer.path, ARGUMENT, USER) == []
    assert RunReader(writer.path).meta["seed"] == 7
    assert RunReader(writer.path).device["board"] == "Jetson TX2"
    assert writer.path.stat().st_mode & 0o077  # closed to others by "1" alone


@pytest.mark.parametrize(
    "text", ["/sys/class/hwmon/hwmon0/name", "rootfs", "the root of 2", "/rootless/x", "nvidia,tegra186", "s3://home"]
)
def test_what_is_no_name_stays_as_it_is(text: str) -> None:
    privacy.withhold("names")
    assert privacy.cleaned(text) == text


def test_what_is_to_be_left_out_reaches_the_processes_of_a_run(tmp_path: Path) -> None:
    """The script's process writes run.json as well, and the sampling process the channels."""
    home = tmp_path / "home" / USER
    home.mkdir(parents=True)
    script = home / "train.py"
    script.write_text(
        "import torch\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(8):\n    o.zero_grad(); m(torch.ones(4, 2)).sum().backward(); o.step()\n"
    )
    command = [sys.executable, "-m", "stepscope", "run", "-q", "--no-ceilings", "--no-argv", "--no-names"]
    ended = subprocess.run(
        [*command, "--record-memory", "off", "--out", str(tmp_path / "runs"), str(script), "--name", ARGUMENT],
        cwd=home, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert RunReader(run).steps.height == 8
    assert found_in(run, ARGUMENT, USER) == []
