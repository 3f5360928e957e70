"""What people type wrongly, and the sentence that each of them needs: an error, and what to type instead."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.fabricate import fabricate_run

from stepscope.__main__ import main


class Mistake(NamedTuple):
    """A line after `stepscope`, its exit code, and what the error and the hint say."""

    line: str
    code: int
    error: str
    hint: str


MISTAKES = (
    # commands of other tools, and misspelt ones
    Mistake("profile train.py", 2, "unknown command 'profile'", "that is: stepscope run"),
    Mistake("list", 2, "unknown command 'list'", "that is: stepscope runs list"),
    Mistake("reprot last", 2, "unknown command 'reprot'", "did you mean report?"),
    Mistake("study thread lenet", 2, "unknown command of 'study' 'thread'", "did you mean threads?"),
    Mistake("runs delete last", 2, "unknown command of 'runs' 'delete'", "rm"),
    # what is trained
    Mistake("run", 2, "stepscope run needs TARGET: a workload", "stepscope run -h"),
    Mistake("run lenett", 2, "unknown workload 'lenett'", "did you mean lenet?"),
    Mistake("run LeNet", 2, "unknown workload 'LeNet'", "did you mean lenet?"),
    Mistake("run ResNet18", 2, "unknown workload 'ResNet18'", "did you mean resnet18-c32"),
    Mistake("run train.pyy", 2, "there is no file 'train.pyy'", "did you mean train.py?"),
    Mistake("run scripts/train.py", 2, "there is no script 'scripts/train.py'", "give the path of a script"),
    Mistake("run mymodel", 2, "unknown workload 'mymodel'", "stepscope workloads lists"),
    Mistake("run .", 2, "'.' is a folder, not a script", "name the script in it"),
    Mistake("fit no_such", 2, "unknown workload 'no_such'", "a script of yours: train.py"),
    Mistake("fit trian.py", 2, "there is no script 'trian.py'", "did you mean train.py?"),
    Mistake("fit folder.py", 2, "'folder.py' is a folder, not a script", "name the script in it"),
    Mistake("fit train.py:model", 2, "there is no module 'train.py' here", "train:model"),
    Mistake("fit mine:model", 2, "there is no module 'mine' here", "run in the folder of its file"),
    Mistake("run nomod:training", 2, "there is no module 'nomod' here", "run in the folder of its file"),
    Mistake("suite run lenett", 2, "unknown workload 'lenett'", "did you mean lenet?"),
    Mistake("suite run trian.py", 2, "there is no script 'trian.py'", "did you mean train.py?"),
    Mistake("suite run --workloads lenet", 2, "has no option --workloads", "stepscope suite run WORKLOADS"),
    Mistake("tune train.pyy", 2, "there is no file 'train.pyy'", "did you mean train.py?"),
    Mistake("study threads lenett", 2, "unknown workload 'lenett'", "did you mean lenet?"),
    # options
    Mistake("run lenet --epochs 2", 2, "has no option --epochs", "stepscope run train.py --epochs"),
    Mistake("run lenet --step 10", 2, "has no option --step", "did you mean --steps"),
    Mistake("run --batch train.py", 2, "needs TARGET", "'train.py' was taken as the value of --batch"),
    Mistake("run --steps 10 train.py", 2, "--steps: of a workload only", "its own arguments after its name"),
    Mistake("run python train.py --epochs 1", 2, "without 'python'", "stepscope run train.py --epochs 1"),
    Mistake(
        "run torchrun --nproc_per_node 2 train.py", 2, "without 'torchrun'", "run -m torch.distributed.run --nproc"
    ),
    Mistake("run lenet extra", 2, "a workload takes no arguments of its own: extra", "stepscope run -h"),
    Mistake("figure --form pdf", 2, "has no option --form", "did you mean --format?"),
    Mistake("report last --htm", 2, "has no option --htm", "did you mean --html"),
    Mistake("report last --out page.html", 2, "--out and --open belong to --html", "add --html"),
    Mistake("doctor now", 2, "unexpected extra argument", "stepscope doctor -h"),
    Mistake("check last", 2, "missing option '--against': the baseline", "stepscope check -h"),
    Mistake("run lenet --batch", 2, "--batch needs a value", "stepscope run -h"),
    Mistake("study threads lenet --repeats", 2, "--repeats needs a value", "stepscope study threads -h"),
    Mistake("figure list last", 2, "'figure list' takes no run", "leave the run out"),
    Mistake("study observation", 2, "unknown command of 'study' 'observation'", "did you mean observations?"),
    Mistake("study observations --only 99", 2, "unknown observation '99'", "did you mean"),
    Mistake("data get mnist", 2, "unknown action 'get'", "known: fetch, list, verify"),
    # values
    Mistake("tune lenet --minutes soon", 2, "--minutes soon: not a number", "--minutes 3"),
    Mistake("run lenet --record every:0", 2, "cannot record 'every:0'", "every:N"),
    Mistake("run lenet --batch 0", 2, "--batch 0: must be 1 or more", "--batch 32"),
    Mistake("run lenet --batch-size many", 2, "--batch many: not a whole number", "--batch 32"),
    Mistake("run lenet --steps -1", 2, "--steps -1: must be 1 or more", "--steps 300"),
    Mistake("run lenet --steps 1e3", 2, "--steps 1e3: not a whole number", "--steps 300"),
    Mistake("run lenet --lr fast", 2, "--lr fast: not a number", "--lr 0.01"),
    Mistake("run lenet --lr -1", 2, "a learning rate of -1.0 cannot be trained with", "above 0"),
    Mistake("run lenet --optimizer adamm", 2, "unknown optimizer 'adamm'", "did you mean adam"),
    Mistake("run lenet --precision double", 2, "unknown precision 'double'", "known: bf16, fp16, fp32, int8"),
    Mistake("run lenet --device cuda", 2, "device 'cuda' is not here: this torch", "--device cpu"),
    Mistake("run lenet --device jetson-tx2", 2, "unknown device 'jetson-tx2'", "--simulate"),
    Mistake("run --simulate tx2 train.py", 2, "unknown simulated board 'tx2'", "did you mean jetson-tx2?"),
    Mistake("run lenet --simulate tx2", 2, "unknown simulated board 'tx2'", "did you mean jetson-tx2?"),
    Mistake("run lenet --period 5", 2, "--period 5: 5 s is longer than most steps", "did you mean --period 5ms?"),
    Mistake("run lenet --period soon", 2, "--period soon: not a length of time", "--period 5ms"),
    Mistake("run lenet --record always", 2, "cannot record 'always'", "adaptive, all, none"),
    Mistake("run lenet --threads 0", 2, "--threads 0: must be 1 or more", "--threads 2"),
    Mistake("run lenet --out taken", 5, "cannot write a run below 'taken'", "--out DIR"),
    Mistake("run lenet --plug 192.168.1.20", 2, "unknown kind of meter '192.168.1.20'", "shelly=192.168.1.20"),
    Mistake("run lenet --with nowhere.toml", 2, "nowhere.toml", "stepscope tune --apply writes one"),
    Mistake("fit lenet --memory 8", 2, "8 bytes hold no training", "did you mean --memory 8GB?"),
    Mistake("fit lenet --memory 8 GB", 2, "'GB': a workload takes no arguments", "--memory 8GB"),
    Mistake("fit lenet --memory lots", 2, "--memory lots: not an amount of memory", "8GB, 512MB or 7.5GiB"),
    Mistake("fit lenet --board tx3", 2, "unknown board 'tx3'", "did you mean tx2"),
    Mistake("fit lenet --board cuda", 2, "'cuda' is not a board", "--device cuda"),
    Mistake("fit lenet --device tx2", 2, "--device tx2: not known", "--board tx2"),
    Mistake("suite run --tier small", 2, "unknown tier 'small'", "known: all"),
    Mistake("tune lenet --for speed", 2, "unknown goal 'speed'", "known: energy, memory, time"),
    # runs
    Mistake("report lastt", 4, "no run folder at 'lastt'", "did you mean last?"),
    Mistake("report runs", 4, "'runs' holds no run.json", "the newest here is runs/"),
    Mistake("report notes.txt", 4, "'notes.txt' is a file, not a run folder", "stepscope import"),
    Mistake("compare last", 2, "one run to compare", "the last two"),
    Mistake("compare last nowhere", 4, "no run folder at 'nowhere'", "--out"),
    Mistake("forecast train.py --steps 9", 2, "is a script: a forecast of it needs a run", "stepscope forecast last"),
    Mistake("forecast last", 2, "how long is the training?", "--steps N or --epochs E"),
    Mistake("figure memroy", 2, "unknown figure 'memroy'", "did you mean memory"),
    Mistake("figure modules last --width 85km", 2, "85km", "--width 85mm"),
    Mistake("export last --to perfeto", 2, "unknown export 'perfeto'", "did you mean perfetto"),
    Mistake("log last --to wandbb", 2, "unknown logger 'wandbb'", "did you mean wandb?"),
    Mistake("import notes.txt", 2, "'notes.txt' has an unknown format", "torch-profiler"),
    Mistake("import empty.log", 2, "'empty.log' is empty", "once something has been written"),
    Mistake("import notes.txt --shift 1e10", 2, "--shift 1e10: must be 4e+09 or less", "--shift"),
    Mistake("import notes.txt --interval 1e300", 2, "--interval 1e300: must be 4e+09 or less", "--interval 100ms"),
    Mistake("import energy.csv --power-column energy_wh", 2, "the unit 'wh' of the column 'power' is not known", "csv"),
    Mistake("import spring.csv --kind meter-csv", 2, "'4.5.26 10.00' is not a known time format", "meter-csv"),
    Mistake("live nowhere", 4, "no run at 'nowhere'", "--wait"),
    Mistake("brief nowhere", 4, "no run folder at 'nowhere'", "--out"),
    Mistake("check last --against nowhere", 4, "no run folder at 'nowhere'", "--out"),
    Mistake("import nowhere.json", 2, "cannot read 'nowhere.json'", "check the path"),
    Mistake("suite export nowhere", 4, "no sweep in 'nowhere'", "stepscope suite list"),
    Mistake("suite show", 4, "there is no sweep below 'suites'", "stepscope suite run --tier smoke"),
    Mistake("view nowhere", 4, "there is no folder 'nowhere'", "stepscope view DIR"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mistakes")
    fabricate_run(place / "runs", steps=20)
    for name in ("train.py", "notes.txt", "taken"):
        (place / name).write_text("print(1)\n", encoding="utf-8")
    (place / "empty.log").touch()
    (place / "folder.py").mkdir()
    (place / "energy.csv").write_text("time,energy_wh\n1,0.1\n2,0.2\n3,0.3\n", encoding="utf-8")
    (place / "spring.csv").write_text("time,power\n4.5.26 10.00,5.0\n4.5.26 10.01,5.1\n", encoding="utf-8")
    return place


def test_there_are_as_many_as_were_tried() -> None:
    assert len({mistake.line for mistake in MISTAKES}) == len(MISTAKES) >= 58


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.line)
def test_a_mistake_gets_one_error_and_what_to_type_instead(
    mistake: Mistake, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    runs = list((folder / "runs").iterdir())
    assert main(shlex.split(mistake.line)) == mistake.code
    said = capsys.readouterr()
    error, *hints = said.err.strip().splitlines()
    assert said.out == ""
    assert error.startswith("error: ")
    assert mistake.error in error
    assert [hint[:6] for hint in hints] == ["hint: "] * len(hints), "one hint, and nothing else"
    assert mistake.hint in " ".join(hints)
    assert len(" ".join(hints)) < 250, "a list that nobody reads"
    assert list((folder / "runs").iterdir()) == runs, "what is refused leaves no folder"


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_a_script_that_does_not_train_gets_one_sentence_and_keeps_its_exit_code(
    quiet: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("nothing else is measured"))
    assert main(["run", "--out", "other", *quiet, "train.py"]) == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert "no training step was seen" in said
    assert "optimizer.step()" in said


@pytest.mark.parametrize("line", ["help", "help run", "run -h", "suite -h"])
def test_help_is_found_however_it_is_asked_for(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 0
    assert "Usage: stepscope" in capsys.readouterr().out


def test_a_group_alone_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite"]) == 2
    said = capsys.readouterr()
    assert "Usage: stepscope suite" in said.out + said.err
    assert "error" not in said.err
