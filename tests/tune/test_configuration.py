"""A configuration is written, read, and in force while a workload trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.patience import HANG_S, until
from tests.tune.fake_training import FACTS, FakeTraining

from stepscope import workloads
from stepscope.__main__ import main
from stepscope.api import tune as tune_api
from stepscope.cli import tune as tune_command
from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.tune import TuneRequest, config
from stepscope.experiments.tune.changes import all_changes
from stepscope.experiments.tune.config import Config, read_config, refuse_bad_config_path, write_config
from stepscope.experiments.tune.judge import judge
from stepscope.experiments.tune.training import Observer, Targets, facts_of
from stepscope.record.precision import workload_in_precision


def test_a_configuration_is_read_as_it_was_written(tmp_path: Path) -> None:
    known = all_changes(FACTS)
    write_config(tmp_path / "best.toml", [known["channels_last"], known["malloc-keep"]], FACTS, "Written by a test")
    config = read_config(tmp_path / "best.toml")
    assert config.changes == ("channels_last", "malloc-keep")
    assert config.environment == known["malloc-keep"].environment
    assert config.facts == FACTS
    assert "torch.channels_last" in (tmp_path / "best.toml").read_text()


def test_an_environment_file_holds_an_environment_alone(tmp_path: Path) -> None:
    known = all_changes(FACTS)
    write_config(tmp_path / "best.env", [known["isa=avx2"]], FACTS, "head")
    assert (tmp_path / "best.env").read_text() == "# head\nexport ONEDNN_MAX_CPU_ISA=AVX2\n"
    with pytest.raises(UsageError, match="cannot hold channels_last"):
        write_config(tmp_path / "other.env", [known["channels_last"]], FACTS, "head")


@pytest.mark.parametrize("text", ["changes", "changes = [", 'changes = ["a"', "facts = 3"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="--with"):
        read_config(path)


@pytest.mark.parametrize(
    "setting",
    ["LD_PRELOAD = '/tmp/evil.so'", "PYTHONPATH = '/tmp'", "OMP_TOOL_LIBRARIES = '/tmp/evil.so'", "PATH = '.'"],
)
def test_a_configuration_from_elsewhere_sets_no_variable_that_no_change_sets(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text('changes = ["channels_last"]\n[environment]\n' + setting.replace("'", '"') + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no change of Stepscope sets"):
        read_config(path)


@pytest.mark.parametrize(
    "setting",
    ['MALLOC_TOP_PAD_ = "4611686018427387904"', 'PYTORCH_CUDA_ALLOC_CONF = "backend:x"', 'OMP_PLACES = "a\\u0000"'],
)
def test_a_configuration_from_elsewhere_sets_no_value_that_no_change_sets(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"changes = []\n[environment]\n{setting}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no change of Stepscope sets"):
        read_config(path)


@pytest.mark.parametrize(
    "facts",
    [
        [1], "x", {"cores": 10**12}, {"cores": "x"}, {"cores": None}, {"large_cores": [[]]}, {"optimizers": [{}]},
        {"environment": 5}, {"loader": {"workers": "x"}}, "[" * 100_000,
    ],
    ids=lambda facts: str(facts)[:30],
)  # fmt: skip
def test_facts_of_a_configuration_that_cannot_be_are_refused(tmp_path: Path, facts: object) -> None:
    text = facts if isinstance(facts, str) else json.dumps(facts)
    (tmp_path / "x.toml").write_text(f"changes = []\nfacts = {json.dumps(text)}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="facts that"):
        read_config(tmp_path / "x.toml")


@pytest.mark.parametrize(
    "content", [None, b"\xff\xfe", b" " * 2_000_000, b"changes = " + b"[" * 100_000, b"changes = [[1]]"]
)
def test_what_can_be_no_configuration_is_refused_whatever_it_is(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content) if content is not None else os.mkfifo(path)
    with pytest.raises(UsageError, match="--with") as caught:
        read_config(path)
    assert len(str(caught.value)) < 400


def test_facts_of_a_real_training_are_taken(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    facts = facts_of(Targets((model,), (torch.optim.SGD(model.parameters(), 0.1),)), Observer(), 4)
    write_config(tmp_path / "x.toml", [], {**facts, "step_s": 0.1, "data_share": None, "prepared_s": None}, "head")
    assert read_config(tmp_path / "x.toml").facts["cores"] == facts["cores"]


def test_one_written_by_hand_needs_no_facts_and_an_unknown_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('changes = ["channels_last", "fused"]\n', encoding="utf-8")
    assert [change.name for change in config.changes_of(read_config(path))] == ["channels_last", "fused"]
    with pytest.raises(UnknownName, match="chanels_last"):
        config.changes_of(Config(("chanels_last",)))


def test_a_workload_trains_with_it_from_its_second_step_on() -> None:
    plain = workloads.find("lenet")
    training = config.apply_to_workload(plain, Config(("channels_last", "fused"))).prepare(batch=2)
    weight = training.model.get_parameter("conv2.weight")
    layouts = []
    try:
        for batch, _ in zip(training.batches(), range(2), strict=False):
            training.step(batch)
            layouts.append(weight.is_contiguous(memory_format=torch.channels_last))
        assert layouts == [True, True]
        assert training.optimizer.param_groups[0]["fused"]
    finally:
        config._kept.close()
    assert weight.is_contiguous()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_changes_of_a_file_lie_above_a_precision(precision: str) -> None:
    changed = config.apply_to_workload(workloads.find("lenet"), Config(("fused",)))
    training = workload_in_precision(changed, precision, "cpu").prepare(batch=2)
    seen = []
    training.model.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    training.optimizer.register_step_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    try:
        for batch, _ in zip(training.batches(), range(2), strict=False):
            training.step(batch)
        assert training.optimizer.param_groups[0]["fused"]
    finally:
        config._kept.close()
    assert seen == [True, False] * 2  # forward and loss alone, as without a file


PARTS = {"divisible": True, "batch": 4}


def test_a_batch_in_parts_is_divided_when_a_workload_trains_with_it() -> None:
    sizes: list[int] = []
    plain = workloads.find("lenet")

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        sizes.append(len(batch[0]))
        return plain.loss(model, batch)

    training = config.apply_to_workload(replace(plain, loss=loss), Config(("accumulate=2",), facts=PARTS)).prepare(
        batch=4
    )
    batches = training.batches()
    try:
        for _ in range(2):
            training.step(next(batches))
    finally:
        config._kept.close()
    assert sizes == [4, 2, 2]  # the first step shows which modules are called


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (["train.py"], "only a step that Stepscope makes itself can be divided"),
        (["mine:training"], "only a step that Stepscope makes itself can be divided"),
        (["lenet", "--batch", "5"], "5 samples are not divisible by 2"),
        (["dcgan-32"], "only a step that Stepscope makes itself can be divided"),
        (["lenet", "--batch", "4", "--precision", "fp16"], "the loss of fp16 is scaled for a whole batch"),
    ],
)
def test_a_batch_that_cannot_be_divided_is_refused_before_anything_is_trained(
    line: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "mine.py"):
        Path(name).write_text("raise SystemExit('it was started')\n")
    Path("x.toml").write_text(f'changes = ["accumulate=2"]\nfacts = {json.dumps(json.dumps(PARTS))}\n')
    assert main(["run", "--with", "x.toml", *line]) == UsageError.exit_code
    assert f"accumulate=2 cannot be made: {why}" in capsys.readouterr().err
    assert not Path("runs").exists()


FUNCTION = """
import torch
from pathlib import Path
def training():
    model = torch.nn.Linear(8, 2)
    def loss(outputs, targets):
        with open("seen.txt", "a") as seen:
            seen.write(f"{torch.get_float32_matmul_precision()} ")
        return torch.nn.functional.mse_loss(outputs, targets)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda n: (torch.rand(n, 8), torch.rand(n, 2)), loss
"""


def test_a_function_trains_with_it_and_ends_after_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FUNCTION)
    Path("x.toml").write_text('changes = ["matmul=medium"]\n')
    line = ["--steps", "8", "--batch", "2", "--no-ceilings", "--record-memory", "off", "-q", "--with", "x.toml"]
    subprocess.run([sys.executable, "-m", "stepscope", "run", *line, "mine:training"], check=True, timeout=HANG_S)
    seen = Path("seen.txt").read_text().split()
    assert seen[-1] == "medium"
    assert len(seen) == 9  # it ends before the update that would be one too many


def test_a_script_that_changes_folder_before_torch_trains_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text('changes = ["matmul=medium"]\n')
    Path("elsewhere").mkdir()
    Path("train.py").write_text(
        "import os; os.chdir('elsewhere')\nimport torch\n"
        "model = torch.nn.Linear(8, 2)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n    model(torch.rand(4, 8)).sum().backward()\n    optimizer.step()\n"
        "print(torch.get_float32_matmul_precision())\n"
    )
    line = ["--no-ceilings", "--record-memory", "off", "-q", "--with", "x.toml", "train.py"]
    command = [sys.executable, "-m", "stepscope", "run", *line]
    ended = subprocess.run(command, check=True, timeout=HANG_S, capture_output=True, text=True)
    assert ended.stdout == "medium\n"


def test_a_configuration_that_a_script_made_too_few_updates_for_is_told_at_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[Any] = []
    monkeypatch.setattr("atexit.register", ends.append)
    config.apply_changes_in_script([all_changes({})["matmul=medium"]])
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    try:
        for updates, ending in (
            (2, "(matmul=medium): they are made after 3 updates of an optimizer, of which"),
            (5, ""),
        ):
            for _ in range(updates):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            ends[0]()
            assert ending in (told := capsys.readouterr().err)
            assert bool(told) == bool(ending)
    finally:
        config._kept.close()


def test_words_behind_a_function_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FUNCTION)
    assert main(["run", "mine:training", "a", "b"]) == UsageError.exit_code
    assert "a function takes no arguments: a b" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["x.json", "nowhere/x.toml", "folder.toml"])
def test_a_file_that_no_configuration_can_be_written_to_is_refused_at_once(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UsageError, match="--apply"):
        refuse_bad_config_path(tmp_path / name)
    refuse_bad_config_path(tmp_path / "best.env")


def test_an_allocator_is_loaded_before_what_the_user_preloads_and_no_other_library_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "jemalloc_library", lambda: Path("/l/libjemalloc.so.2"))
    facts = {**FACTS, "jemalloc": "/l/libjemalloc.so.2", "environment": {"LD_PRELOAD": "/l/libgomp.so.1"}}
    change = all_changes(facts)["jemalloc"]
    assert change.environment == {"LD_PRELOAD": "/l/libjemalloc.so.2:/l/libgomp.so.1"}
    write_config(tmp_path / "best.toml", [change], FACTS, "Written by a test")
    for preloaded in ("/l/libgomp.so.1", "/l/libjemalloc.so.2:/l/libgomp.so.1"):  # before and after the restart
        monkeypatch.setenv("LD_PRELOAD", preloaded)
        assert read_config(tmp_path / "best.toml").environment == change.environment
    for preloaded in ("", "/l/other.so"):
        monkeypatch.setenv("LD_PRELOAD", preloaded)
        with pytest.raises(UsageError, match="no change"):
            read_config(tmp_path / "best.toml")


def test_the_configuration_is_written_also_where_nobody_reads_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: Any, **__: Any) -> None:
        raise BrokenPipeError

    tuned = FakeTraining({"fused": 0.8}).tuning(only=("fused",))
    monkeypatch.setattr(tune_api, "run_tune_request", lambda *_, **__: (judge(tuned, "t"), tuned))
    monkeypatch.setattr(tune_command, "print_wide", closed)
    with pytest.raises(BrokenPipeError):
        tune_command._tune(TuneRequest(target="lenet"), tmp_path / "best.toml", tmp_path / "study")
    assert "fused" in (tmp_path / "best.toml").read_text(encoding="utf-8")


def test_what_takes_seconds_before_the_first_step_is_said_and_what_takes_none_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tune_api._line_if_long("calling quick:training"):
        pass
    monkeypatch.setattr(tune_api, "_LONG_S", 0.0)
    with tune_api._line_if_long("calling mine:training"):
        lines = ""

        def is_said() -> bool:
            nonlocal lines
            lines += capsys.readouterr().err
            return "mine" in lines

        until(is_said)
    assert lines == "calling mine:training ...\n"
