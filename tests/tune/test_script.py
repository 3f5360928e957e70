"""A script is tuned within its own loop, and started again where it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.patience import HANG_S

import stepscope
from stepscope.__main__ import main
from stepscope.cli.tune import _run_command
from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.tune import TuneRequest
from stepscope.experiments.tune.process import RestartingTraining

SCRIPT = """
import json, sys, torch
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 2))
seen = []
def watch(module, args, output):
    layout = model[0].weight.is_contiguous(memory_format=torch.channels_last)
    seen.append((layout, str(output.dtype), torch.get_num_threads()))
model[0].register_forward_hook(watch)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = DataLoader(TensorDataset(torch.randn(int(sys.argv[1]), 2, 6, 6)), batch_size=4)
for (batch,) in data:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    Path(sys.argv[2]).write_text(json.dumps(seen))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", [str, Path])
def test_a_script_is_given_as_text_or_as_a_path(kind: type, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.py"):
        stepscope.tune(kind(tmp_path / "train.py"), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_script_takes_changes_between_its_steps_and_is_started_again(script: Path, tmp_path: Path) -> None:
    noted = tmp_path / "seen.json"
    orders = {"script": str(script), "arguments": ["80", str(noted)], "facts": {}, "threads": 2}
    place = RestartingTraining(orders, tmp_path / "log.txt", {})
    try:
        facts = place.ask(HANG_S, do="facts")
        assert facts["optimizers"][0]["kind"] == "SGD"
        assert facts["loader"] == {"workers": 0, "prefetch": 0, "stream": False}
        assert (facts["calls"], facts["conv2d"], facts["losses_known"]) == (1, 1, False)
        place.ask(HANG_S, do="use", facts={**facts, "cores": 4})
        changed = place.ask(HANG_S, do="block", changes=["channels_last", "bf16", "threads=1"], warmup=1, steps=3)
        assert len(changed["seconds"]) == 3
        assert json.loads(noted.read_text())[-1] == [True, "torch.bfloat16", 1]
        as_is = place.ask(HANG_S, do="block", changes=[], warmup=1, steps=3)
        assert len(as_is["seconds"]) == 3
        assert json.loads(noted.read_text())[-1] == [False, "torch.float32", 2]
        again = place.ask(HANG_S, do="block", changes=[], warmup=1, steps=14)  # 11 made of 20: it ends within
        assert len(again["seconds"]) == 14
        with pytest.raises(UsageError, match="too few to tune"):
            place.ask(HANG_S, do="block", changes=[], warmup=1, steps=40)
    finally:
        place.close()


def test_a_module_is_tuned_as_python_m_runs_it(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "packaged").mkdir()
    (tmp_path / "packaged/noted.py").write_text("from pathlib import Path\n")
    relative = SCRIPT.replace("from pathlib import Path", "from .noted import Path")
    where = "seen.append((__package__, __spec__.name, sys.argv[0], sys.path[0]))\n"
    (tmp_path / "packaged/train.py").write_text(relative.replace("def watch", f"{where}def watch"))
    noted = tmp_path / "two words.json"
    orders = {"script": "packaged.train", "module": True, "arguments": ["80", str(noted)], "facts": {}, "threads": 2}
    place = RestartingTraining(orders, tmp_path / "log.txt", {})
    try:
        place.ask(HANG_S, do="facts")
        assert len(place.ask(HANG_S, do="block", changes=[], warmup=1, steps=3)["seconds"]) == 3
    finally:
        place.close()
    file = tmp_path / "packaged/train.py"
    assert json.loads(noted.read_text())[0] == ["packaged", "packaged.train", str(file), str(tmp_path)]


BLOCKS = """
import torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    def forward(self, values):
        return self.layers(values)
model = torch.nn.Sequential(*(Block() for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
"""


def test_the_memory_of_a_script_s_step_is_measured_as_is_and_changed(tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text(BLOCKS, encoding="utf-8")
    place = RestartingTraining({"script": str(script), "facts": {}, "threads": 1}, tmp_path / "log.txt", {})
    try:
        assert place.ask(HANG_S, do="facts")["blocks"] == 6
        as_is, changed, again = (
            place.ask(HANG_S, do="memory", changes=names)["bytes"] for names in ([], ["checkpoint"], [])
        )
        assert changed < 0.7 * as_is
        assert again == as_is
        assert len(place.ask(HANG_S, do="block", changes=[], warmup=1, steps=4)["seconds"]) == 4
    finally:
        place.close()


SLOW_LOADER = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, place):
        time.sleep(place in (4, 8, 12, 16))
        return torch.randn(8)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def test_loading_that_a_step_shows_is_not_forgotten_for_later_ones_that_do_not(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW_LOADER, encoding="utf-8")
    orders = {"script": str(script), "arguments": [], "facts": {}, "threads": 1}
    place = RestartingTraining(orders, tmp_path / "log.txt", {})
    try:
        place.ask(HANG_S, do="facts")
        place.ask(HANG_S, do="block", changes=[], warmup=1, steps=6)
        assert place.ask(HANG_S, do="facts")["data_share"] > 0.5  # of four, the machine lets one step be
    finally:
        place.close()


FOLDS = """
import time, torch
for fold in range(40):
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        time.sleep(0.02)
        optimizer.step()
"""


def test_no_step_of_a_script_that_makes_its_model_anew_is_shorter_than_it_can_be(tmp_path: Path) -> None:
    script = tmp_path / "folds.py"
    script.write_text(FOLDS, encoding="utf-8")
    orders = {"script": str(script), "arguments": [], "facts": {}, "threads": 1}
    place, seconds = RestartingTraining(orders, tmp_path / "log.txt", {}), list[float]()
    try:
        for steps in (3, 4, 5, 4, 3, 5, 4, 6):
            assert place.ask(HANG_S, do="facts")["step_s"] > 0
            seconds += place.ask(HANG_S, do="block", changes=[], warmup=1, steps=steps)["seconds"]
    finally:
        place.close()
    assert len(seconds) == 34
    assert min(seconds) > 0.019


def test_the_command_that_goes_on_has_its_folder_before_the_script_s_own_options(tmp_path: Path) -> None:
    request = TuneRequest("train.py", arguments=("--width", "8"), minutes=0.5)
    assert request.command_line("stepscope", "tune", out=Path("o")) == (
        "stepscope tune --minutes 0.5 --out o -- train.py --width 8"
    )
    assert TuneRequest("train.py").command_line("stepscope", "tune", out=Path("o")) == "stepscope tune train.py --out o"


def test_the_commands_of_a_module_say_m_right_before_it_and_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[TuneRequest] = []

    def tuned(request: TuneRequest, folder: Path, progress: bool) -> None:
        asked.append(request)
        raise UsageError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stepscope.api.tune.run_tune_request", tuned)
    (tmp_path / "packaged").mkdir()
    (tmp_path / "packaged/__main__.py").write_text("")  # also a folder that Python runs
    for arguments, line in (
        (("-m", "two words", "--minutes", "9"), "-m packaged -- -m 'two words' --minutes 9"),
        (("3",), "-m packaged -- 3"),
        ((), "-m packaged"),
    ):
        request = TuneRequest("packaged", arguments, minutes=0.5, module=True)
        assert (
            request.command_line("stepscope", "tune", out=Path("o")) == f"stepscope tune --minutes 0.5 --out o {line}"
        )
        assert main(["tune", *request.words(Path("o"))]) == 2
        assert asked.pop() == request
        assert (request.subject, request.of_a_script, request.of_a_function) == ("packaged", True, False)
    assert _run_command(Path("x.toml"), request) == "stepscope run --with x.toml -m packaged"
    (tmp_path / "train.py").write_text("")
    assert main(["tune", "train.py", "-m", "3", "--minutes", "2"]) == 2  # behind a script it is the script's
    assert (asked[-1].module, asked[-1].arguments, asked[-1].minutes) == (False, ("-m", "3"), 2)
    capsys.readouterr()


def test_a_module_that_is_not_there_is_refused_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UsageError, match="there is no module 'trian' here") as refused:
        stepscope.tune("trian", module=True, out=tmp_path / "out")
    assert refused.value.hint == "did you mean -m train?"
    assert not (tmp_path / "out").exists()


def test_a_script_that_trains_nothing_is_told_with_what_it_printed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args(['--odd'])\n")
    place = RestartingTraining({"script": str(script), "facts": {}, "threads": 1}, tmp_path / "log.txt", {})
    try:
        with pytest.raises(UsageError, match=r"no training step was seen: it printed: .*unrecognized arguments: --odd"):
            place.ask(HANG_S, do="facts")
    finally:
        place.close()


def test_a_change_that_is_none_is_refused_before_anything_begins(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown change 'fusd'"):
        stepscope.tune("lenet", only=("fusd",), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
