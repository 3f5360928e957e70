"""What of a script could not be seen, and must not be taken for known: conditions, numbers, data, ops."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fit.test_script import followed

from stepscope.errors import StepscopeError
from stepscope.footprint.script import ScriptLog, dry_run_script
from stepscope.footprint.simulator import live_peak
from stepscope.record.dry.storage_log import nothing_hidden

EVALUATES = """
def evaluate():
    with torch.no_grad():
        model(torch.randn(200_000, 100))
"""
LARGE = 200_000 * 100 * 4  # B of the inputs of an evaluation


def most(watched: ScriptLog) -> int:
    return max(live_peak(log).high for log in (watched.log, watched.later or watched.log))


@pytest.mark.parametrize(
    "loop",
    [
        "def main():\n for s in range(10_000):\n  late = s > 0 and s % 1000 == 0\n  update(*data[:8])\n"
        "  if late:\n   evaluate()\nmain()",
        "count = 0\nfor i in range(1000):\n update(*data[:8])\n count = count + 1\n if count % 700 == 0:\n  evaluate()",
        "for epoch in range(5):\n for i in range(1000):\n  s = epoch * 1000 + i\n  update(*data[:8])\n"
        "  if s % 700 == 699:\n   evaluate()",
    ],
)
def test_conditions_that_are_worked_out_of_the_rounds_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    watched = followed(tmp_path, monkeypatch, f"{EVALUATES}{loop}\n")
    assert len(watched.forced) == 1
    assert most(watched) > LARGE


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        ("import numpy as np\nlengths = np.array([8] * 500 + [2000] + [8] * 500)", True),
        ("texts = ['a b'] * 500 + ['a b' * 50] + ['a b'] * 500\nlengths = [8] * 1001", True),
        ("lengths = [8] * 1001", False),
        ("order = list(range(1001))[::-1]\nlengths = torch.full((1001,), 8).tolist()", False),
    ],
)
def test_lists_from_which_omitted_rounds_pick_larger_items_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: str, told: bool
) -> None:
    picked = "texts[i]" if "texts" in lists else "order[i]" if "order" in lists else "i"
    loop = f"for i in range(0, len(lengths), 1):\n    {picked}\n    update(*data[: lengths[i]])\n"
    watched = followed(tmp_path, monkeypatch, f"{lists}\n{loop}")
    assert any("whose data are larger" in words for words in watched.missed) is told


def test_a_size_that_is_drawn_now_and_then_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
import random
size = 8
for s in range(5000):
    if s % 10 == 0:
        size = random.choice((8, 16, 2000))
    update(*data[:size])
"""
    assert any(words.startswith("what changes at line") for words in followed(tmp_path, monkeypatch, body).missed)


def test_a_result_that_is_made_up_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
for epoch in range(100):
    for i in range(20):
        update(*data[:8])
    accuracy = (model(data.tensors[0][:50]).argmax(1) == 0).float().mean().item()
    if accuracy > 0.98:
        break
    if epoch == 50:
        evaluate()
"""
    watched = followed(tmp_path, monkeypatch, EVALUATES + body)
    assert watched.log.value_reads > 0
    assert most(watched) > LARGE


def test_a_whole_number_that_is_made_up_and_becomes_a_size_is_told_and_a_count_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
def learn(n):
    x = torch.randn(n, 100)
    update(x, torch.zeros(n, dtype=torch.long))
    return (model(x).argmax(1) == 0).sum().item()
right = 0
for s in range(100):
    mask = torch.rand(5000) > 0.5
    k = {0}
    right += learn(k * 8)
    print(right, int(mask.sum()))
"""
    drawn = followed(tmp_path, monkeypatch, body.format("int(mask.sum())")).missed
    assert drawn == ("sizes that follow from a number which is made up, at line 23",)
    assert followed(tmp_path, monkeypatch, body.format("3")).missed == ()


def test_losses_and_gradients_are_finite_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
big = nn.Linear(400, 400)
for n in range(3):
    loss = model(torch.randn(8, 100)).sum() + big(torch.randn(8, 400)).sum()
    if not loss.isfinite():
        continue
    loss.backward()
    if all(torch.isfinite(parameter.grad).all() for parameter in big.parameters()):
        optimizer.step()
"""
    assert len(set(followed(tmp_path, monkeypatch, body).log.frame()["step"])) > 2


def test_an_op_that_needs_numbers_is_told_where_the_script_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
for epoch in range(3):
    update(*data[:8])
    try:
        assert len(torch.bincount(torch.randn(100).argmax(0, keepdim=True), minlength=4)) == 4
        classes = torch.unique(torch.randn(100))
        torch.allclose(torch.randn(3), torch.randn(3))
        evaluate()
    except Exception as error:
        print("validation failed", error)
"""
    watched = followed(tmp_path, monkeypatch, EVALUATES + body)
    assert watched.rest_unknown
    assert [words.partition(", at ")[2] for words in watched.missed] == ["line 25: aten.allclose.default"]


@pytest.mark.parametrize("bar", ["loader", "tqdm(loader)"])
def test_gradients_add_up_until_the_update_behind_a_progress_bar_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bar: str
) -> None:
    pytest.importorskip("tqdm")
    body = f"""
from tqdm import tqdm
loader = DataLoader(data, batch_size=50)
for i, (x, y) in enumerate({bar}):
    nn.functional.cross_entropy(model(x), y).backward()
    if (i + 1) % 7 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert followed(tmp_path, monkeypatch, body).missed == ()


def test_of_loaders_that_are_zipped_the_last_batch_has_its_true_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
first, second = DataLoader(data, batch_size=50), DataLoader(data, batch_size=50)
weights = [1.0] * len(first)
for i, ((x, y), _) in enumerate(zip(first, second)):
    weights[i]
    update(x, y)
assert i == len(first) - 1
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert (watched.stopped, watched.missed, watched.presumed) == (None, (), ())


def test_a_sampler_may_give_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
rows = {f"row{n}": torch.randn(100) for n in range(100)}
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(rows)
    def __getitem__(self, key):
        return rows[key]
class Keys(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(rows)
    def __len__(self):
        return len(rows)
for x in DataLoader(Rows(), batch_size=4, sampler=Keys()):
    update(x, torch.zeros(4, dtype=torch.long))
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert (watched.stopped, watched.rest_unknown) == (None, False)


def test_a_script_knows_its_file_wherever_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
import os, sys
from pathlib import Path
assert sys.argv[0] == "train.py"
os.makedirs("outputs")
os.chdir("outputs")
assert "update" in (Path(__file__).parent / "train.py").read_text()
for n in range(3):
    update(*data[:8])
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert (watched.stopped, watched.missed) == (None, ())


@pytest.mark.parametrize("end", ["raise SystemExit(2)", "open('missing')", "import not_there"])
def test_a_script_that_fails_before_it_trains_is_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(f"import torch\nprint('begins')\n{end}\n")
    with pytest.raises(StepscopeError, match=r"left with 2|line 3"):
        dry_run_script("train.py", [], nothing_hidden)
    assert capsys.readouterr().err.count("begins") == 1


def test_a_loss_that_is_compared_as_a_tensor_is_the_best_so_far_and_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
best, before = float("inf"), torch.tensor(float("inf"))
for epoch in range(50):
    loss = update(*data[:8]).detach()
    if loss < best:
        best = loss
        torch.save(model.state_dict(), "best.pt")
    if before > loss:
        before = loss
        torch.save(model.state_dict(), "before.pt")
    if loss > 0.9:
        break
    if loss > 1e4 or torch.isnan(loss):
        raise RuntimeError("diverged")
    if epoch == 49:
        model(torch.randn(200_000, 100))
for name in ("best.pt", "before.pt"):
    model.load_state_dict(torch.load(name))
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert (watched.stopped, watched.missed, watched.rest_unknown) == (None, (), False)
    assert most(watched) > LARGE


@pytest.mark.parametrize(("size", "larger"), [(3_000_000, True), (50_000, False)])
def test_files_that_omitted_rounds_read_and_that_are_larger_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, larger: bool
) -> None:
    for part in range(12):
        (tmp_path / f"part{part:02d}.bin").write_bytes(bytes(size if part == 6 else 10_000))
    body = "for part in range(12):\n    open(f'part{part:02d}.bin', 'rb').read()\n    update(*data[:8])\n"
    told = ("rounds that read larger files, as part06.bin",) if larger else ()
    assert followed(tmp_path, monkeypatch, body).missed == told


def test_labels_that_an_array_picks_are_no_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
import numpy
labels = torch.randint(0, 10, (5000,))
for rows in numpy.array_split(numpy.random.permutation(5000), 500):
    update(data[:10][0], labels[rows])
"""
    assert followed(tmp_path, monkeypatch, body).missed == ()
