"""A script is followed to its end: what it does besides training, and what its data take."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fit import jobs
from torch import nn
from torch._subclasses import FakeTensorMode

from stepscope.analysis.memory.limits import ALLOCATORS, limit_of_memory
from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint.prediction import predict_script_fit
from stepscope.footprint.result import FitResult
from stepscope.footprint.script import ScriptLog, dry_run_script
from stepscope.footprint.simulator import live_peak
from stepscope.record.dry.fake_numbers import _set_data_from
from stepscope.record.dry.storage_log import nothing_hidden

HEAD = """
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(5000, 100), torch.zeros(5000, dtype=torch.long))
def update(x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
"""
EPOCHS = """
for epoch in range(300):
    for x, y in DataLoader(data, batch_size=32, shuffle=True, num_workers={workers}):
        update(x, y)
    right = 0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=1024):
            right += (model(x).argmax(1) == y).sum().item()
    torch.save(copy.deepcopy(model.state_dict()), "best.pt")
"""


def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> ScriptLog:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HEAD + body)
    return dry_run_script("train.py", [], nothing_hidden)


def answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, limit: str = "8GB") -> FitResult:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HEAD + body)
    return predict_script_fit("train.py", [], limit_of_memory(limit), "pinned", lambda _: jobs.MEASURED.environment)


def test_a_larger_batch_of_the_evaluation_decides_and_the_whole_program_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answered(tmp_path, monkeypatch, EPOCHS.format(workers=0))
    peaks = {scene.name: scene.bytes for scene in found.scenes}
    assert set(peaks) == {"building", "training", "evaluation", "saving"}
    assert peaks["evaluation"] > peaks["training"] + 1024 * 200 * 4
    assert found.peak_bytes == peaks["evaluation"]
    assert (found.verdict, found.unsure) == ("fits", ())
    assert not (tmp_path / "best.pt").exists()  # nothing of the user's is written


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("if torch.rand(1).item() >= 1:\n    raise ValueError\n{evaluation}", "ValueError"),  # numbers are made up
        ("import io\nio.FileIO('raw', 'w')\n{evaluation}", "a way that is not answered for"),
    ],
)
def test_where_a_larger_rest_was_not_followed_the_answer_is_at_least_so_much(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = body.format(evaluation="with torch.no_grad():\n    model(torch.zeros(4096, 100))\n")
    found = answered(tmp_path, monkeypatch, "for _ in range(3):\n    update(*data[:32])\n" + rest)
    assert (found.verdict, found.fits, found.at_least, found.options) == ("cannot tell", None, True, ())
    assert found.interval == (found.process.low, None)
    assert found.as_dict()["interval"] == (found.process.low, None)
    assert any(said in why for why in found.unsure), found.unsure


def test_a_loop_without_an_end_in_which_nothing_is_evaluated_is_likely_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answered(tmp_path, monkeypatch, "while True:\n    update(*data[:32])\n")
    assert (found.verdict, found.at_least) == ("likely fits", False)


def test_a_part_of_a_script_that_is_too_large_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "for _ in range(3):\n    update(*data[:32])\nif torch.rand(1).item() >= 1:\n    raise ValueError\n"
    found = answered(tmp_path, monkeypatch, body, "10MB")
    assert (found.verdict, found.fits, found.at_least) == ("does not fit", False, True)


def test_an_answer_for_a_script_on_another_machine_is_at_most_likely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HEAD + "for _ in range(3):\n    update(*data[:32])\n")
    found = predict_script_fit("train.py", [], limit_of_memory("8GB"))
    assert found.verdict == "likely fits"
    assert "not measured" in found.unsure[0]


def test_a_parameter_that_is_moved_to_a_gpu_lies_there() -> None:
    with FakeTensorMode(), torch.no_grad():
        weight = nn.Parameter(torch.empty(3))
        _set_data_from(weight, torch.empty(3, device="cuda"))
        assert (weight * torch.empty(3, device="cuda")).device == weight.device == torch.device("cuda", 0)


def test_of_a_script_on_a_gpu_nothing_is_said_of_the_gpu_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_gpu(*given: Any) -> ScriptLog:
        watched = dry_run_script(*given)
        watched.log.storages[-1].device = "cuda:0"
        return watched

    monkeypatch.setattr("stepscope.footprint.prediction.dry_run_script", on_a_gpu)
    found = answered(tmp_path, monkeypatch, "for _ in range(3):\n    update(*data[:32])\n")
    assert found.verdict == "likely fits"
    assert "nothing is said of the GPU's own memory" in found.unsure[0]


def test_workers_of_a_loader_and_the_batches_that_wait_are_in_the_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none, four = (answered(tmp_path, monkeypatch, EPOCHS.format(workers=count)) for count in (0, 4))
    low, high = four.process.workers
    assert none.process.workers == (0, 0)
    assert low >= 4 * 6_900_000
    assert high >= 4 * 80_000_000 + 4 * 2 * 32 * 100 * 4
    assert four.process.high - none.process.high >= high - 1_000_000


def test_what_each_round_keeps_grows_with_the_rounds_that_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "kept = []\nfor step in range(1000):\n    loss = update(*data[:64])\n    kept.append({})\n"
    plain, keeping = (
        answered(tmp_path, monkeypatch, body.format(each)).live.high for each in ("loss.item()", "torch.ones(5000)")
    )
    assert keeping - plain == pytest.approx(1000 * 20_000, rel=0.05)


def test_the_copy_of_an_ema_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "ema = copy.deepcopy(model)\nfor _ in range(3):\n    update(*data[:32])\n"
    body += "best = copy.deepcopy(ema.state_dict())\n"
    watched = followed(tmp_path, monkeypatch, body)
    sizes = [storage.bytes for storage in watched.log.storages if storage.bytes == 100 * 200 * 4]
    made = [storage.op for storage in watched.log.storages if storage.op == "aten.detach.default"]
    assert len(sizes) >= 3
    assert made == []


def test_the_copy_of_a_model_has_no_gradients_as_torch_copies_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "update(*data[:32])\ncopied = copy.deepcopy(model)\n"
    body += "assert model[0].weight.grad is not None and copied[0].weight.grad is None\nupdate(*data[:32])\n"
    real = torch.nn.Parameter(torch.ones(2))
    real.sum().backward()  # type: ignore[no-untyped-call]
    assert copy.deepcopy(real).grad is None
    assert followed(tmp_path, monkeypatch, body).missed == ()


def test_a_script_that_never_ends_is_answered_for_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answered(tmp_path, monkeypatch, "while True:\n    update(*data[:8])\n")
    assert found.verdict == "likely fits"
    assert "rounds of the loop at line 15 after 11 updates" in found.unsure[0]


def test_arrays_that_are_no_tensors_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "import numpy\nrows = numpy.ones((6000, 1000))\nfor _ in range(2):\n    update(*data[:8])\n"
    gc.collect()  # what other tests left would be given back meanwhile, and hide as much growth
    watched = followed(tmp_path, monkeypatch, body)
    assert watched.loading.arrays[0] == pytest.approx(48_000_000, rel=0.1)
    assert "numpy" in watched.imports


def test_what_small_tensors_took_of_the_heap_is_counted_beside_large_ones_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "for _ in range(2):\n    update(*data[:8])\n"
    body += "small = [torch.ones(5_000_000) for _ in range(4)]\ndel small\nlarge = torch.ones(25_000_000)\n"
    live = live_peak(followed(tmp_path, monkeypatch, body).log)
    assert live.bytes == pytest.approx(100e6, rel=0.05)
    assert live.heap_mark[0] == pytest.approx(80e6, rel=0.05)
    assert live.heap_mark[1] == 100_000_000


def test_tables_that_come_and_go_before_the_first_update_are_counted_and_what_is_imported_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = Path("/proc/self/clear_refs")
    if not mark.exists():
        pytest.skip("no mark of resident memory that can be set back")
    mark.write_text("5")  # to what is resident now
    plain = "for _ in range(2):\n    update(*data[:8])\n"
    body = "import numpy\ntable = numpy.ones((4000, 10_000))\nmeans = table.mean(0)\ndel table\n" + plain
    watched = followed(tmp_path, monkeypatch, body)
    assert watched.loading.arrays[1] < 60e6
    assert 290e6 < watched.loading.earlier < 370e6
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "large_to_import.py").write_text("kept = bytearray(b'1') * 100_000_000")
    monkeypatch.syspath_prepend(tmp_path / "late")
    mark.write_text("5")
    imported = followed(tmp_path, monkeypatch, "import large_to_import\n" + plain).loading
    assert imported.earlier < 40e6
    assert imported.arrays[1] < 110e6  # the array is found as such


def test_objects_of_a_data_set_are_copied_by_each_worker_that_looks_at_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows = [(float(n), float(-n)) for n in range(count)]
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, n):
        return torch.ones(100), 0
for x, y in DataLoader(Rows({0}), batch_size=32, num_workers=3):
    update(x, y)
"""
    few, many = (followed(tmp_path, monkeypatch, body.format(count)).loading for count in (2_000, 200_000))
    assert many.copied - few.copied == pytest.approx(3 * 198_000 * (56 + 2 * 24 + 8), rel=0.1)
    environment = replace(jobs.MEASURED.environment, worker=(7, 80))
    assert many.bytes(environment)[1] == 3 * 80 + many.batches[1] + many.copied


def test_arrays_that_come_while_it_trains_are_counted_and_rounds_that_were_left_out_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = Path("/proc/self/clear_refs")
    if not mark.exists():
        pytest.skip("no mark of resident memory that can be set back")
    body = "import numpy\nkept = []\nfor n in range({0}):\n    update(*data[:8])\n    {1}\n"
    mark.write_text("5")
    (missed,) = followed(tmp_path, monkeypatch, body.format(500, "kept.append(numpy.ones(300_000))")).missed
    assert missed.startswith("arrays of rounds that were omitted, 1.19 GB at the most")
    mark.write_text("5")
    found = followed(tmp_path, monkeypatch, body.format(500, "pass") + "numpy.ones(30_000_000).sum()\n")
    assert found.missed == ()
    assert 150e6 < found.loading.arrays[1] < 300e6


def test_files_of_the_user_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.txt").write_text("before")
    body = """
import os, shutil
open("log.txt", "a").write("after")
assert open("log.txt").read() == "beforeafter"
os.remove("log.txt")
shutil.rmtree(".")
update(*data[:8])
torch.save(model.state_dict(), "kept.pt")
model.load_state_dict(torch.load("kept.pt"))
update(*data[:8])
"""
    followed(tmp_path, monkeypatch, body)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "train.py"]
    assert (tmp_path / "log.txt").read_text() == "before"


def test_a_script_that_wants_arguments_is_told_where_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="left with 2 before it trained") as told:
        followed(tmp_path, monkeypatch, "raise SystemExit(2)\n")
    assert "its own arguments stand behind it" in str(told.value.hint)


def test_a_script_that_fails_by_itself_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "def wrong():\n    raise ValueError('no backward yet')\nwrong()\n"
    with pytest.raises(StepscopeError, match="fails by itself: line 16: ValueError: no backward yet"):
        followed(tmp_path, monkeypatch, body)


def test_what_is_evaluated_in_inference_mode_is_followed_with_all_that_its_ops_consist_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = """
for x, y in DataLoader(data, batch_size=32):
    update(x, y)
heads = torch.randn(8, 4, 512, 16)
with {mode}():
    weights = nn.functional.softmax(torch.matmul(heads, heads.transpose(2, 3)), 3)
    kept = nn.functional.layer_norm(weights @ heads, (16,)).matmul(torch.randn(16, 4))
    print((model(data.tensors[0]).argmax(1) == 1).float().mean().item())
"""
    peaks = []
    for mode in ("torch.no_grad", "torch.inference_mode"):
        found = followed(tmp_path, monkeypatch, evaluation.format(mode=mode))
        assert found.missed == ()
        peaks.append(live_peak(found.log).bytes)
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("layer", ["Sigmoid", "ReLU", "GELU"])
def test_graphs_that_no_backward_pass_asks_for_are_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    evaluation = f"""
update(*data[:16])
other = nn.Sequential(nn.Linear(100, 1000), nn.{layer}(), nn.Linear(1000, 2))
for _ in range({{passes}}):
    kept = other(torch.randn(4000, 100)).detach()
"""
    peaks = [live_peak(followed(tmp_path, monkeypatch, evaluation.format(passes=n)).log).bytes for n in (3, 9)]
    assert peaks[0] == peaks[1]


def test_slices_of_several_dimensions_are_followed_as_the_script_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
for n in range(2):
    update(*data[:8])
    shapes = torch.ones(4, 4)[:, :2].shape, torch.ones(4, 4)[1:3, None, ..., 0].shape
assert shapes == ((4, 2), (2, 1))
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert watched.missed == ()


def test_a_length_that_was_drawn_is_one_and_a_split_data_set_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = followed(
        tmp_path, monkeypatch, """
first, second = torch.utils.data.random_split(range(100_000), [70_000, 30_000])
assert sorted([*first.indices, *second.indices]) == list(range(100_000))
for length in sorted(int(n) for n in torch.randint(1000, 1100, (8,))):
    assert 1000 <= length < 1100
    update(torch.randn(length, 100), torch.zeros(length, dtype=torch.long))
assert torch.randn(300, 200).tolist()[-1][-1] == 1.0
"""
    )  # fmt: skip
    assert found.missed == ()
    assert found.log.value_reads < 20
    assert live_peak(found.log).bytes > 2 * 1000 * 200 * 4


def test_steps_of_a_script_need_not_be_alike_and_glibc_may_keep_more_than_of_equal_ones() -> None:
    by = ALLOCATORS["default"]
    live = (190_000_000, 190_000_000)
    took = 806_000_000 - 324_000_000 - 17_000_000  # lengths that grow from step to step
    assert by.resident(live, 0)[1] < took < by.for_script().resident(live, 0)[1]
    assert ALLOCATORS["pinned"].for_script() == ALLOCATORS["pinned"]
