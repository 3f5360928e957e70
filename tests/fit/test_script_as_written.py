"""Scripts as people write them: moved models, arrays, training loops of a library; and scripts that have no end."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from tests.fit.test_script import EPOCHS, followed

from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint import time_limit
from stepscope.record.dry.storage_log import peak_of

LOOP = """
for x, y in DataLoader(data, batch_size=50):
    update(x, y)
"""


def test_a_model_that_is_moved_or_changes_its_type_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = followed(tmp_path, monkeypatch, "model.to('cpu', memory_format=torch.channels_last)\n" + LOOP)
    assert watched.stopped is None
    body = "data = [(torch.randn(8, 100).double(), torch.zeros(8).long())] * 3\nmodel.double()\n"
    doubled = followed(tmp_path, monkeypatch, body + "for x, y in data:\n    update(x, y)\n")
    weights = [s.bytes for s in doubled.log.storages if s.category == "parameter" and s.shape == "200x100"]
    assert doubled.stopped is None
    assert weights[-1] == 8 * 200 * 100


def test_arrays_and_choices_of_outputs_are_made_up_and_an_array_keeps_its_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight evaluations of 5000 rows of ten: kept as arrays they take what they take as tensors."""
    body = (
        LOOP
        + """
kept = []
with torch.no_grad():
    for round in range(8):
        out = model(data.tensors[0])
        kept.append(out.numpy())
        chosen, places, same = out[out > 0], (out > 0).nonzero(), torch.equal(out, out)
        assert chosen.shape == (50_000,) and places.shape == (50_000, 2) and same
        del out, chosen, places
print(f"{model(data.tensors[0]).sum():.3f}", torch.isfinite(out := torch.randn(2).sum()))
"""
    )
    plain = followed(tmp_path, monkeypatch, body.replace("kept.append(out.numpy())", "out.numpy()"))
    kept = followed(tmp_path, monkeypatch, body)
    assert plain.stopped is None
    assert kept.missed == plain.missed == ()
    assert plain.log.value_reads > 8
    assert peak_of(kept.log) - peak_of(plain.log) == pytest.approx(8 * 4 * 50_000, rel=0.02)


def test_a_model_that_looks_at_a_mask_which_is_made_of_numbers_goes_on_as_it_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = followed(
        tmp_path,
        monkeypatch,
        """
net = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
optimizer = torch.optim.Adam(net.parameters())
size = torch.tensor([4, 6])
assert size[1].item() == 6 and copy.deepcopy(size).tolist() == [4, 6]
for _ in range(3):
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    net(torch.randn(2, 6, 16), torch.randn(2, 6, 16), tgt_mask=mask).sum().backward()
    optimizer.step()
""",
    )
    assert watched.stopped is None
    assert watched.log.value_reads == 0


def test_a_library_that_evaluates_after_its_last_batch_is_followed_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "loops_of_a_library.py").write_text("""
import torch
def fit(model, loader, update):
    for number, (x, y) in enumerate(loader):
        update(x, y)
        if number + 1 == len(loader):
            with torch.no_grad():
                model(torch.randn(2000, 100))
""")
    watched = followed(
        tmp_path,
        monkeypatch,
        f"""
import sys
sys.path.insert(0, {str(folder)!r})
from loops_of_a_library import fit
loader = DataLoader(data, batch_size=50)
assert len(loader) == 100
fit(model, loader, update)
""",
    )
    assert watched.log.evaluations == 1
    assert len({step for step, *_ in watched.log.events}) <= 5


def test_what_an_optimizer_keeps_is_no_growth_where_the_next_batch_is_fetched_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
optimizer = torch.optim.Adam(model.parameters())
def ahead(loader):
    batches = iter(loader)
    now = next(batches)
    for after in batches:
        yield now
        now = after
    yield now
batches = ahead(DataLoader(data, batch_size=50))
while (batch := next(batches, None)) is not None:
    update(*batch)
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert not [s for s in watched.log.storages if s.op.startswith("kept by")]


def test_workers_of_loaders_that_run_one_after_another_are_not_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = "for x, y in DataLoader(data, batch_size=50, num_workers={0}, persistent_workers={1}):\n    update(x, y)\n"
    apart = followed(tmp_path, monkeypatch, one.format(2, False) + one.format(3, False))
    assert apart.loading.workers == 3
    kept = "first = DataLoader(data, batch_size=50, num_workers=2, persistent_workers=True)\nfor x, y in first:\n"
    assert followed(tmp_path, monkeypatch, kept + "    update(x, y)\n" + one.format(3, False)).loading.workers == 5
    inside = one.format(2, False).replace(
        "update(x, y)", "for z in DataLoader(data, 999, num_workers=3):\n        pass"
    )
    assert followed(tmp_path, monkeypatch, inside + one.format(1, False)).loading.workers == 5


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n    pass\n",
        "while True:\n    try:\n        1 / 0\n    except BaseException:\n        continue\n",
        "all(number == 0 for number in iter(int, 1))\n",
    ],
    ids=["endless", "swallowing", "inside_of_python"],
)
def test_a_script_without_an_end_is_left_and_the_answer_says_why(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limit, "MOST_S", 5.0)
    monkeypatch.setattr(time_limit, "MOST_BEFORE_S", 5.0)
    monkeypatch.setattr(time_limit, "_TICK_S", 0.05)
    with pytest.raises(UsageError, match=r"no optimizer step when 5 s of processor time are over, at line \d+"):
        followed(tmp_path, monkeypatch, "import time\n" + body)
    watched = followed(tmp_path, monkeypatch, "for n in range(2):\n    update(*data[:5])\n" + body)
    assert any(re.match(r"what comes after 2 updates: \d+ s", missed) for missed in watched.missed)


def test_what_waits_for_something_is_left_and_sleep_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import threading, time\ntime.sleep(100_000)\nupdate(*data[:5])\nupdate(*data[:5])\n"
    assert followed(tmp_path, monkeypatch, body).missed == ()
    monkeypatch.setattr(time_limit, "_IDLE_S", 3.0)
    watched = followed(tmp_path, monkeypatch, body + "threading.Event().wait()\n")
    assert watched.missed[0].startswith("what comes after 2 updates: it waits for something, at line")


def test_a_script_that_reads_standard_input_is_told_how_to_give_it_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(StepscopeError, match="EOFError") as failed:
        followed(tmp_path, monkeypatch, "input()\n" + EPOCHS)
    assert "standard input" in str(failed.value.hint)


def test_what_processes_take_and_what_is_compiled_is_not_followed_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
import subprocess, sys
beside = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
model = torch.compile(model, backend="eager")
for n in range(3):
    update(*data[:8])
print(beside.poll())
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert watched.missed == ("what torch.compile makes of it", "what processes take that it starts")


def test_a_process_may_be_closed_before_training_another_may_train_and_an_import_may_be_relative_to_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
import importlib, multiprocessing, sys
importlib.import_module("xml.dom.pulldom", "xml")
start = multiprocessing.get_context("fork").Process
def train():
    try:
        update(*data[:8])
    except BaseException:
        sys.exit(3)
for task in (int, train):
    process = start(target=task)
    process.start()
    process.join()
    assert process.exitcode == 0
process.close()
for n in range(3):
    update(*data[:8])
"""
    monkeypatch.delitem(sys.modules, "xml.dom.pulldom", raising=False)
    watched = followed(tmp_path, monkeypatch, body)
    assert (watched.stopped, watched.missed) == (None, ("what the process takes that starts the training in another",))


def test_processes_that_end_before_an_update_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
import multiprocessing
def fill(n):
    bytearray(b'1') * 60_000_000
with multiprocessing.get_context('fork').Pool(1) as pool:
    pool.map(fill, [0])
update(*data[:8])
update(*data[:8])
"""
    assert followed(tmp_path, monkeypatch, body).missed == ("what processes take that it starts",)


@pytest.mark.parametrize(
    ("body", "missed"),
    [
        ("import sys\nupdate(*data[:8])\nsys.exit(update(*data[:8]).item())", ()),  # as sys.exit(main()) does
        ("import pickle\nupdate(*data[:8])\nupdate(*data[:8])\nwith open('model.pkl', 'wb') as file:\n"
         "    pickle.dump(model.state_dict(), file)\nwith open('model.pkl', 'rb') as file:\n"
         "    model.load_state_dict(pickle.load(file))", ("what pickle takes of tensors",)),
        ("from torch.func import functional_call, grad\nnames = dict(model.named_parameters())\nfor n in range(3):\n"
         "    gradients = grad(lambda names: functional_call(model, names, (data[:8][0],)).sum())(names)\n"
         "    for name, parameter in model.named_parameters():\n        parameter.grad = gradients[name]\n"
         "    optimizer.step()", ()),
        ("from torch.distributions import Categorical\nfor n in range(3):\n"
         "    drawn = Categorical(logits=model(data[:8][0]))\n    drawn.log_prob(drawn.sample()).mean().backward()\n"
         "    optimizer.step()", ()),
    ],
)  # fmt: skip
def test_what_a_library_does_with_tensors_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, missed: tuple[str, ...]
) -> None:
    watched = followed(tmp_path, monkeypatch, f"{body}\n")
    assert (watched.stopped, watched.missed, watched.rest_unknown) == (None, missed, False)


def test_a_module_of_a_package_is_told_from_where_it_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StepscopeError, match="relative import") as failed:
        followed(tmp_path, monkeypatch, "from .net import build\n")
    assert "give a script beside the package" in str(failed.value.hint)


def test_trainings_by_spawn_are_followed_here_and_behind_an_update_the_script_is_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
import torch.multiprocessing as mp
def train(rank):
    update(*data[:8])
if __name__ == "__main__":
    {0}
    mp.spawn(train, nprocs=2)
"""
    spawned = followed(tmp_path, monkeypatch, body.format("pass")).missed
    assert "other processes that train as the first one does: each takes as much again" in spawned
    (missed,) = followed(tmp_path, monkeypatch, body.format("train(0)")).missed
    assert missed.startswith("what comes after 1 updates: it starts a process by 'spawn'")


def test_a_model_that_is_traced_at_the_end_is_followed_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
model.eval()
traced = torch.jit.trace(model, torch.zeros(2000, 100))
traced.save("traced.pt")
with torch.no_grad():
    right = (traced(torch.zeros(3000, 100)).argmax(1) == 1).sum().item()
"""
    watched = followed(tmp_path, monkeypatch, LOOP + body)
    assert watched.stopped is None
    assert watched.missed == ("what torch.jit.trace makes of it",)
    assert not watched.rest_unknown
    assert any(storage.shape == "3000x200" for storage in watched.log.storages)
    assert not (tmp_path / "traced.pt").exists()


def test_layers_that_get_their_sizes_from_the_first_batch_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
model = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(10))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(40):
    update(torch.randn(8, 2, 50), torch.zeros(8, dtype=torch.long))
assert model[3].in_features == 4 * 48
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert (watched.stopped, watched.missed) == (None, ())
    weights = {storage.shape for storage in watched.log.storages if storage.category == "parameter"}
    assert {"10x192", "4x2x3"} <= weights
