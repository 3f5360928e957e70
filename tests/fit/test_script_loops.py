"""Loops of a script that are cut: what their rounds keep, and what of them was not seen."""

from __future__ import annotations

import ast
import socket
import sqlite3
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
from tests.fit.test_script import answered, followed

from stepscope.errors import StepscopeError
from stepscope.footprint.script import ScriptLog
from stepscope.footprint.script_loops import Loops
from stepscope.footprint.script_progress import Progress
from stepscope.footprint.simulator import live_peak
from stepscope.record.dry.storage_log import StorageLog

WEIGHTS = (100 * 200 + 200 + 200 * 10 + 10) * 4  # B of the model
LOADER = "loader = DataLoader(data, batch_size=50)\n"
EPOCH = LOADER + "for epoch in range({epochs}):\n    for x, y in loader:\n        update(x, y)\n"


def most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> int:
    return live_peak(followed(tmp_path, monkeypatch, body).log).high


def test_what_each_epoch_keeps_grows_with_the_epochs_that_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "snapshots = []\n" + EPOCH + "    {keep}\n"
    for keep in ("snapshots.append(copy.deepcopy(model.state_dict()))", "snapshots += [copy.deepcopy(model)]"):
        few, many = (most(tmp_path, monkeypatch, body.format(epochs=n, keep=keep)) for n in (3, 100))
        assert many - few == pytest.approx(97 * WEIGHTS, rel=0.02)
    few, many = (
        most(tmp_path, monkeypatch, body.format(epochs=n, keep="best = copy.deepcopy(model)")) for n in (3, 100)
    )
    assert many == few


def test_models_of_folds_that_are_kept_grow_with_the_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
kept = []
for fold in range({folds}):
    net = nn.Linear(100, 5000)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(20):
        for n in range(100):
            net(data.tensors[0][:8]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    {keep}
"""
    few, many = (most(tmp_path, monkeypatch, body.format(folds=n, keep="kept.append(net)")) for n in (3, 30))
    assert many - few == pytest.approx(27 * 101 * 5000 * 4, rel=0.02)
    few, many = (most(tmp_path, monkeypatch, body.format(folds=n, keep="pass")) for n in (3, 30))
    assert many == few


def test_what_a_round_of_batches_keeps_is_gone_with_it_and_does_not_grow_with_the_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs of 100 batches: of one epoch where the list is emptied, of 50 where it is not."""
    body = LOADER + "kept = []\nfor epoch in range({0}):\n    {1}\n    for x, y in loader:\n        update(x, y)\n"
    body += "        kept.append(torch.ones(5000))\n"
    emptied = [most(tmp_path, monkeypatch, body.format(n, "kept = []")) for n in (3, 50)]
    assert emptied[0] == emptied[1]
    whole = most(tmp_path, monkeypatch, body.format(50, "pass"))
    assert whole - emptied[0] == pytest.approx(49 * 100 * 20_000, rel=0.05)


def test_items_of_a_short_loop_that_differ_are_each_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
def train(width):
    net = nn.Linear(100, width)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(20):
        for x, y in DataLoader(data, batch_size=50):
            net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
for {0} in {1}:
    train({2})
"""
    for loop in (
        ("name", "('small', 'other', 'large', 'tiny')", "{'large': 50_000}.get(name, 50)"),
        ("width, rate", "[(50, 0.1), (50, 0.01), (50_000, 0.1), (50, 0.001), (50, 0.2)]", "width"),
        ("name, width", "{'a': 50, 'b': 60, 'c': 50_000, 'd': 50}.items()", "width"),
    ):
        found = followed(tmp_path, monkeypatch, body.format(*loop))
        assert found.missed == ()
        assert live_peak(found.log).bytes > 2 * 50_000 * 100 * 4


def test_of_many_items_the_larger_ones_are_followed_and_those_of_other_texts_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = "[torch.ones(700 if n == 500 else 5 + n % 30, 100) for n in range(1000)]"
    body = "for x in {0}:\n    update(x, torch.zeros(len(x), dtype=torch.long))\n"
    found = followed(tmp_path, monkeypatch, body.format(lengths))
    assert found.missed == ()
    assert [s for s in found.log.storages if s.shape == "700x200"]
    sizes = "[7 * n % 401 for n in range(90)]"
    body = "for size in {0}:\n    update(torch.ones(size + 1, 100), torch.zeros(size + 1, dtype=torch.long))\n"
    found = followed(tmp_path, monkeypatch, body.format(sizes))
    assert found.missed == ()
    assert [s for s in found.log.storages if s.shape == "400x200"]
    body = (
        "import itertools\nfor start in itertools.chain(range(0, 5000, 50)):\n    update(*data[start : start + 50])\n"
    )
    assert followed(tmp_path, monkeypatch, body).missed == ()
    body = "for name in [str(n) for n in range(1000)]:\n    update(*data[:8])\n"
    (missed,) = followed(tmp_path, monkeypatch, body).missed
    assert missed == "984 rounds of the loop at line 15, whose items differ"


CLASS = """
from torch.utils.data import Dataset
class Texts(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, n):
        return torch.ones(2000 if n == 2000 else {others}, 100)
"""
PADDED = """
def padded(samples):
    x = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return x, torch.zeros(x.shape[0], dtype=torch.long)
"""
TRAINED = "for x, y in {0}:\n    update(x.sum(1), y)\n"


def test_batches_that_were_not_seen_and_may_be_larger_cost_certainty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missed(body: str) -> tuple[str, ...]:
        return followed(tmp_path, monkeypatch, body).missed

    own = TRAINED.format("DataLoader(Texts(), batch_size=4, collate_fn=padded)")
    assert missed(CLASS.format(others=50) + PADDED + own) == (
        "996 batches of a loader with a collate_fn of its own, which may be larger",
    )
    alone = "for x in DataLoader(Texts()):\n    update(x.sum(1), torch.zeros(1, dtype=torch.long))\n"
    assert missed(CLASS.format(others="50 + n") + alone) == (
        "3996 batches of a loader whose batches are not of one size",
    )
    texts = "for x, text in DataLoader([(torch.ones(100), 'a' * n) for n in range(90)], batch_size=8):\n"
    texts += "    update(x, torch.zeros(len(x), dtype=torch.long))\n"
    assert missed(texts) == ("8 batches of a loader whose batches are not of one size",)


def test_batches_of_samples_that_are_of_one_shape_or_cannot_be_stacked_cost_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = "class Rows(Dataset):\n    def __len__(self):\n        return 999\n    def __getitem__(self, n):\n"
    samples = "from torch.utils.data import Dataset\n" + samples + "        return torch.ones(100), n % 10\n"
    body = samples + "for x, y in DataLoader({0}):\n    update(x, y)\n"
    own = ("data, batch_size=8, collate_fn=rows", "Rows(), batch_size=8, collate_fn=rows")
    for loader in ("Rows(), batch_size=8, shuffle=True", "Rows()", *own):
        rows = "rows = torch.utils.data.default_collate\nrows = lambda batch, plain=rows: plain(batch)\n"
        assert followed(tmp_path, monkeypatch, rows + body.format(loader)).missed == ()


ADDED = """
for epoch in range(2):
    for i, (x, y) in enumerate(DataLoader(data, batch_size=50)):
        nn.functional.cross_entropy(model(x), y).backward()
        if {0}:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("test", ["(i + 1) % 8 == 0", "(i + 1) % 1000 == 0 or i + 1 == 100", "i % 30 == 29"])
def test_gradients_that_add_up_are_followed_until_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str
) -> None:
    found = followed(tmp_path, monkeypatch, ADDED.format(test))
    assert found.missed == ()
    assert found.stopped is None


def test_rounds_whose_gradients_add_up_until_adam_steps_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "model = nn.Sequential(nn.Linear(100, 3000), nn.ReLU(), nn.Linear(3000, 10))\n"
    head += "optimizer = torch.optim.Adam(model.parameters())\n"
    tested = ADDED.format("(i + 1) % 4 == 0 or (i + 1) == 100")
    assert followed(tmp_path, monkeypatch, head + tested).missed == ()
    counted = """
micro = [0]
def learn(x, y):
    nn.functional.cross_entropy(model(x), y).backward()
    micro[0] += 1
    if micro[0] == 4:
        micro[0] = 0
        optimizer.step()
        optimizer.zero_grad()
for x, y in DataLoader(data, batch_size=50):
    learn(x, y)
"""
    assert followed(tmp_path, monkeypatch, head + counted).missed == ()


EVALUATED = """
large = torch.randn(3000, 100)
def evaluate():
    with torch.no_grad():
        model(large)
loader = DataLoader(data, batch_size=50)
step = 0
for i, (x, y) in enumerate(loader):
    update(x, y)
    step += 1
    if {0}:
        {1}
"""


def test_what_runs_only_in_rounds_that_were_left_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forced(*parts: str) -> tuple[str, ...]:
        found = followed(tmp_path, monkeypatch, EVALUATED.format(*parts))
        assert found.missed == ()
        assert not found.forced or more_of(found) > 3000 * 200 * 4 / 2
        return found.forced

    assert forced("(i + 1) % 40 == 0", "evaluate()") == ("what runs at line 25 only where (i + 1) % 40 == 0",)
    assert forced("step == 40", "model.train(); evaluate()") == ("what runs at line 25 only where step == 40",)
    assert forced("i > 3 and i % 200 == 1", "print(f'{i} of {len(loader)}')") == ()
    assert forced("i % 40 == 0", "evaluate()") == ()
    assert forced("i + 1 == len(loader)", "evaluate()") == ()


def more_of(found: ScriptLog) -> int:
    """By how much the pass that follows what only omitted rounds run takes more than the first, B."""
    assert found.later is not None
    return live_peak(found.later).high - live_peak(found.log).high


def test_what_fails_where_its_condition_is_not_met_is_told_as_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = followed(tmp_path, monkeypatch, EVALUATED.format("step == 40", "raise KeyError(model(large))"))
    assert found.missed == ("what runs at line 25 only where step == 40",)
    assert found.forced == ()
    assert not found.rest_unknown
    assert "KeyError" not in capfd.readouterr().err


def test_a_branch_that_fails_does_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = (
        EVALUATED
        + "    if step == 50:\n        torch.load('none')\n    if step == 60:\n        import os; os._exit(3 + 4)\n"
    )
    found = followed(tmp_path, monkeypatch, two.format("step == 40", "evaluate()"))
    assert found.missed == ("what runs at line 27 only where step == 50", "what runs at line 29 only where step == 60")
    assert found.forced == ("what runs at line 25 only where step == 40",)
    assert more_of(found) > 0


COUNTED = """
assert {first}, "mine"
rounds = 0
waiting = iter(DataLoader(data, batch_size=50))
for step in range(90):
    try:
        x, y = next(waiting)
    except StopIteration:
        waiting = iter(DataLoader(data, batch_size=50))
        x, y = next(waiting)
    update(x, y)
    rounds += 1
assert rounds == 90, rounds
large = torch.zeros(50_000_000)
"""


def test_an_assertion_on_rounds_that_were_omitted_is_taken_to_hold_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = followed(tmp_path, monkeypatch, COUNTED.format(first=True))
    assert [words.startswith("line ") for words in found.presumed] == [True]
    assert (found.missed, found.rest_unknown) == ((), False)
    assert live_peak(found.log).bytes > 200_000_000


def test_an_assertion_that_fails_before_anything_is_omitted_fails_as_in_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StepscopeError, match="AssertionError: mine"):
        followed(tmp_path, monkeypatch, COUNTED.format(first=False))


OUTSIDE = """
import ctypes, os, socket, sqlite3, subprocess
for epoch in range(40):
    update(*data[:50])
    if epoch == 20:
        {0}
"""


@pytest.mark.parametrize(
    "harm",
    [
        "subprocess.run(['rm', 'kept.txt'])",
        "os.popen('rm kept.txt').read()",
        "os.posix_spawn('/bin/rm', ['rm', 'kept.txt'], os.environ)",
        "os.spawnv(os.P_WAIT, '/bin/rm', ['rm', 'kept.txt'])",
        "os.execv('/bin/rm', ['rm', 'kept.txt'])",
        "sqlite3.connect('kept.db').execute('delete from runs').connection.commit()",
        "ctypes.CDLL(None).unlink(b'kept.txt')",
        "os.kill(os.getpid(), 9)",
        "with socket.socket() as opened: opened.connect(('127.0.0.1', {port}))",
    ],
)
def test_what_a_script_may_never_come_to_reaches_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with sqlite3.connect(tmp_path / "kept.db") as base:
        base.execute("create table runs (name text)")
        base.execute("insert into runs values ('mine')")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        found = followed(tmp_path, monkeypatch, OUTSIDE.format(harm.format(port=server.getsockname()[1])))
        with pytest.raises(BlockingIOError):  # nobody came
            server.accept()
    assert found.missed == ("what runs at line 19 only where epoch == 20",)
    assert (tmp_path / "kept.txt").read_text() == "mine"
    assert list(base.execute("select name from runs")) == [("mine",)]


def test_a_thread_of_who_asks_goes_on_while_a_script_reaches_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, failed = threading.Event(), list[BaseException]()

    def works() -> None:
        while not ended.wait(0.005):
            try:
                sqlite3.connect(":memory:").close()
            except BaseException as error:
                failed.append(error)

    bystander = threading.Thread(target=works)
    bystander.start()
    try:
        found = followed(tmp_path, monkeypatch, OUTSIDE.format("sqlite3.connect('kept.db')"))
    finally:
        ended.set()
        bystander.join()
    assert found.missed == ("what runs at line 19 only where epoch == 20",)
    assert failed == []


def test_a_script_that_would_become_another_program_is_followed_until_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import os\nfor _ in range(3):\n    update(*data[:50])\nos.execv('/bin/true', ['true'])\n"
    (missed,) = followed(tmp_path, monkeypatch, body).missed
    assert missed == "what comes after 3 updates: it would start or reach what is outside of it (os.exec)"


ANSWERS = """
large = torch.randn(3000, 100)
tick = 0
class Clock:
    def __init__(self):
        self.rounds = 0
    def ready(self):
        return self.rounds % 70 == 69
    @property
    def warm(self):
        return not self.rounds < 30
def due(n):
    return tick % n == n - 1
def late():
    return tick + torch.zeros(3) > 3
clock = Clock()
hooks = [(50, lambda: model[0](large))]
for step in range(100):
    update(*data[:50])
    tick += 1
    clock.rounds += 1
    late()
    {0}
"""


@pytest.mark.parametrize(
    ("line", "test"),
    [
        ("clock.ready() and model[0](large)", "self.rounds % 70 == 69"),
        ("if clock.warm: model[0](large)", "not self.rounds < 30"),
        ("if due(80): model[0](large)", "tick % n == n - 1"),
        ("[hook() for every, hook in hooks if step and step % every == 0]", "step and step % every == 0"),
    ],
)
def test_what_a_function_or_a_comprehension_asks_of_the_rounds_is_followed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, test: str
) -> None:
    found = followed(tmp_path, monkeypatch, ANSWERS.format(line))
    assert found.missed == ()
    assert any(words.endswith(f"only where {test}") for words in found.forced)
    assert more_of(found) > 1_000_000


def test_sizes_that_grow_or_are_looked_up_in_rounds_that_were_omitted_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "size, sizes = 8, {{0: 8, 30: 500}}\nfor epoch in range(40):\n    if {0}\n    update(*data[:size])\n"
    for branch in (
        "epoch and epoch % 5 == 0: size *= 2",
        "epoch % 5 == 0: size = size * 2",
        "epoch in sizes: size = sizes[epoch]",
    ):
        (missed,) = followed(tmp_path, monkeypatch, body.format(branch)).missed
        assert missed == f"what changes at line 17 each time where {branch.partition(':')[0]}"
    for branch in (
        "epoch % 5 == 4: rate = 0.1",
        "epoch % 5 == 4: size += 0",
        "epoch % 5 == 4: rate = 1.0; rate *= 0.5",
    ):
        assert followed(tmp_path, monkeypatch, body.format(branch)).missed == ()


def test_sizes_that_are_chosen_in_rounds_that_were_omitted_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "size = 8\nfor epoch in range(100):\n    {0}\n    update(*data[:size])\n"
    for branch in ("if epoch == 50: size = 900", "if epoch % 50 == 48: size += 892",
                   "size = 900 if 10 <= epoch < 90 else 8"):  # fmt: skip
        found = followed(tmp_path, monkeypatch, body.format(branch))
        assert found.later is not None, branch
        assert live_peak(found.later).high > live_peak(found.log).high + 800 * 200 * 4
    body = "x = data.tensors[0]\nfor epoch in range(100):\n    update(*data[:8])\n    if epoch == 50: gram = x.T @ x\n"
    assert followed(tmp_path, monkeypatch, body).later is not None


def test_a_length_that_the_data_have_is_told_to_be_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
ids = torch.randint(0, 9, (2000, 100))
for step in range(5):
    length = {0}
    update(data.tensors[0][:8], data.tensors[1][:8])
"""
    for length in ("int((ids != 0).sum(1).max())", "ids.sum(1).amax().item()"):
        answer = answered(tmp_path, monkeypatch, body.format(length))
        assert any("the largest of whole numbers" in why for why in answer.unsure), length
    right = answered(tmp_path, monkeypatch, body.format("int((ids == 3).sum())"))
    assert not any("the largest of whole numbers" in why for why in right.unsure)


UNFROZEN = """
back = nn.Sequential(*[nn.Linear(1000, 1000) for _ in range(4)])
head = nn.Linear(1000, 10)
back.requires_grad_(False)
optimizer = torch.optim.Adam(head.parameters())
for epoch in range(10):
    print("epoch", epoch)
    if epoch == 5:
        print("now", epoch)
        back.requires_grad_(True)
        optimizer.add_param_group({"params": back.parameters()})
    for _ in range(6):
        nn.functional.cross_entropy(head(back(torch.randn(8, 1000))), torch.zeros(8).long()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_layers_that_learn_from_an_epoch_on_that_was_omitted_are_within_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Gradients and two states of four layers; whether it comes to that is not known, so the lower end stays."""
    found = answered(tmp_path, monkeypatch, UNFROZEN)
    layers = 4 * 1001 * 1000 * 4
    assert found.live.high - found.live.low > 2.5 * layers
    assert found.live.low < 1.5 * layers
    assert found.unsure == ("followed once, not seen to be reached: what runs at line 22 only where epoch == 5",)
    assert found.verdict == "likely fits"
    assert "now" not in capfd.readouterr().err  # the other pass says nothing


def test_a_module_beside_the_script_begins_anew_in_the_other_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counted.py").write_text("import torch\nrounds = 0\nmade = torch.ones(10)\n")
    body = """
import counted
for epoch in range(40):
    update(*data[:50])
    assert counted.rounds == epoch or epoch > 37
    counted.rounds += 1
    counted.made += 1
    if epoch == 20:
        model[0](torch.zeros(5000, 100))
"""
    found = followed(tmp_path, monkeypatch, body)
    assert (found.missed, len(found.forced)) == ((), 1)
    assert more_of(found) > 0
    assert "counted" not in sys.modules


def test_a_loader_without_a_length_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(torch.randn(100), 0)] * 640)
for x, y in DataLoader(Stream(), batch_size=32):
    update(x, y)
"""
    assert most(tmp_path, monkeypatch, body) > WEIGHTS


def test_what_a_function_does_in_one_epoch_alone_is_told_and_what_never_changes_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
def train(epoch, width=8, resume=None):
    if {0}:
        nn.Linear(1000, 1000)
    for x, y in DataLoader(data, batch_size=100):
        update(x, y)
for epoch in range(20):
    train(epoch)
"""
    for test in ("epoch == 5", "epoch + 1 == 5", "epoch % 7 == 4"):
        found = followed(tmp_path, monkeypatch, body.format(test))
        assert (found.missed, found.forced) == ((), (f"what runs at line 17 only where {test}",))
    for test in ("width > 9", "resume is not None", "epoch % 19 == 0"):
        found = followed(tmp_path, monkeypatch, body.format(test))
        assert (found.missed, found.later) == ((), None)


COUNTS = """
class Counts:
    def __init__(self):
        self.seen, self.left = 0, 7
    def every(self, module):
        self.left -= 1
        if self.left == 0:
            self.left = 7
            module(torch.zeros(5000, 100))
    def from_then_on(self, module):
        self.seen += 1
        if self.seen < 9:
            return
        module(torch.zeros(5000, 100))
    def for_a_while(self, module):
        self.seen += 1
        if self.seen > 1:
            return
        module(torch.zeros(50, 100))
    def always(self, module):
        if self.seen == 1:
            module(torch.zeros(5000, 100))
counts = Counts()
for epoch in range(40):
    update(*data[:50])
    counts.{0}(model[0])
"""


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("every", ("what runs at line 21 only where self.left == 0",)),
        ("from_then_on", ("what runs at line 26 except where self.seen < 9",)),
        ("for_a_while", ()),
        ("always", ()),
    ],
)
def test_what_an_object_counts_may_be_rounds(
    method: str, told: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = followed(tmp_path, monkeypatch, COUNTS.format(method))
    assert (found.missed, found.forced) == ((), told)
    assert not told or more_of(found) > 0


def test_what_comes_after_rounds_that_are_skipped_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
for epoch in range(40):
    update(*data[:50])
    if epoch % 10 < 9 or epoch == 39:
        continue
    model[0](torch.zeros(5000, 100))
"""
    (told,) = followed(tmp_path, monkeypatch, body).forced
    assert told == "what runs at line 18 except where epoch % 10 < 9 or epoch == 39"


def test_what_is_kept_every_so_many_rounds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
kept = []
model = nn.Sequential(nn.Linear(100, 3000), nn.ReLU(), nn.Linear(3000, 10))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(100):
    update(*data[:50])
    if (epoch + 1) % 10 == 0:
        {0}
"""
    (missed,) = followed(tmp_path, monkeypatch, body.format("kept.append(copy.deepcopy(model))")).missed
    assert missed.startswith("what is kept at line 21 in rounds that were omitted: 1.3")
    assert followed(tmp_path, monkeypatch, body.format("best = copy.deepcopy(model)")).missed == ()


VALIDATED = """
def main():
    kept = {{}}
    history = []
    for epoch in range(50):
        update(*data[:50])
        if (epoch + 1) % 10 == 0:
            outputs = []
            with torch.no_grad():
                for _ in range(2):
                    x_valid, y_valid = torch.randn(8000, 100), torch.zeros(8000)
                    out = model[0](x_valid)
                    outputs.append(out)
            {0}
main()
"""


@pytest.mark.parametrize(
    "keep", ["history.append(len(outputs))", "history.append((out[:, 0] == y_valid).sum() + out.sum())"]
)
def test_variables_of_a_validation_now_and_then_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    assert followed(tmp_path, monkeypatch, VALIDATED.format(keep)).missed == ()


@pytest.mark.parametrize("keep", ["history.append(out.detach())", "kept[epoch] = (epoch, outputs)", "history += [out]"])
def test_variables_that_are_put_into_a_container_now_and_then_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    (missed,) = followed(tmp_path, monkeypatch, VALIDATED.format(keep)).missed
    assert missed.startswith("what is kept at line 21 in rounds that were omitted")


def test_rounds_that_only_count_take_little_memory() -> None:
    """600 B a round were taken by the branches and sizes of all rounds."""
    loops = Loops(Progress(StorageLog()), lambda: None, {})
    loops.rewriter.visit(ast.parse("for n in numbers:\n    if n % 7 == 0:\n        divmod(n, 7)\n"))
    taken = loops.note_test
    tracemalloc.start()
    for n in loops.rounds(range(2000), 0):
        taken(0, n % 7 == 0)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2000 * 500


def test_what_is_asked_very_often_takes_little_memory() -> None:
    """Functions that sort and choose the data are no rounds of a training."""
    loops = Loops(Progress(StorageLog()), lambda: None, {})
    loops.rewriter.visit(ast.parse("def late(n):\n    return n > limit\n"))
    answered = loops.note_returned_test
    for _ in loops.rounds(range(1), 0):
        tracemalloc.start()
        for n in range(100_000):
            assert answered(0, False, lambda n=n: n, lambda: 10**9) is False
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 3_000_000


def test_rounds_whose_sizes_are_drawn_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "sizes = [{0}]\nfor step in range(100):\n    update(*data[: sizes[step % 3]])\n"
    assert followed(tmp_path, monkeypatch, body.format("100, 100, 900")).missed == (
        "rounds of the loop at line 16, which are not alike",
    )
    assert followed(tmp_path, monkeypatch, body.format("100, 100, 100")).missed == ()


def test_small_arrays_that_come_with_each_batch_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
import numpy
cache = {{}}
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40_000
    def __getitem__(self, n):
        {0}
        return torch.ones(100), 0
for x, y in DataLoader(Rows(), batch_size=8):
    update(x, y)
"""
    (missed,) = followed(tmp_path, monkeypatch, body.format("cache[n] = numpy.ones(2_000)")).missed
    assert missed.startswith("arrays of rounds that were omitted")
    assert followed(tmp_path, monkeypatch, body.format("pass")).missed == ()


def test_arrays_that_are_made_once_after_the_training_come_with_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
import numpy
for x, y in DataLoader(data, batch_size=2):
    update(x, y)
curves = [numpy.zeros(1000) for _ in range(10)]
for _ in range(10):
    curves.append(numpy.zeros(1000))
"""
    assert followed(tmp_path, monkeypatch, body).missed == ()


def test_a_loop_that_only_looks_before_it_learns_in_a_function_goes_on_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
class Agent:
    def act(self):
        with torch.no_grad():
            return model(data.tensors[0][:1])
    def learn(self):
        update(*data[:50])
agent, buffer = Agent(), []
for step in range(1000):
    buffer.append(agent.act().argmax().item())
    if len(buffer) > 20:
        agent.learn()
"""
    assert followed(tmp_path, monkeypatch, body).log.step == 2


BANK = """
bank = torch.empty(0, 1000)
rows = []
for step in range(300):
    rows_of_step = torch.randn(250, 1000)
    update(*data[:50])
    {0}
"""


def test_what_rounds_make_anew_and_larger_is_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte a round: 300 of them, and while the last bank is made, the one before it too."""
    found = followed(tmp_path, monkeypatch, BANK.format("bank = torch.cat([bank, rows_of_step])[-80_000:]"))
    assert live_peak(found.log).high == pytest.approx(599e6, rel=0.02)
    assert "what is computed from what 296 rounds of a loop add to" in found.missed
    gathered = most(tmp_path, monkeypatch, BANK.format("rows.append(rows_of_step)"))
    assert gathered == pytest.approx(300e6, rel=0.02)


def test_what_may_be_there_at_the_most_counts_half_in_the_parts_of_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answered(tmp_path, monkeypatch, BANK.format("bank = torch.cat([bank, rows_of_step])"))
    assert sum(found.breakdown.values()) == found.process.middle
    assert min(found.breakdown.values()) >= 0
    assert found.breakdown["temporary"] == pytest.approx(300e6, rel=0.1)


def test_arrays_that_rounds_keep_are_counted_for_those_that_were_omitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
import numpy
for x, y in DataLoader(data, batch_size=50):
    update(x, y)
found = {1}
with torch.no_grad():
    for x, y in DataLoader(data, batch_size=2):
        scores = model(x.repeat(500, 1)).repeat(1, 10).numpy()  # 400 kB
        {0}
"""

    def arrays(*parts: str) -> int:
        return followed(tmp_path, monkeypatch, body.format(*parts)).loading.arrays[1]

    size = 1000 * 100 * 4 * 2500
    plain = arrays("pass", "[]")
    assert arrays("found.append(scores.copy())", "[]") - plain == pytest.approx(size, rel=0.05)
    anew = arrays("found = numpy.concatenate([found, scores])", "numpy.empty((0, 100), numpy.float32)")
    assert anew - plain == pytest.approx(2 * size, rel=0.05)


def test_arrays_of_zeros_count_as_far_as_their_pages_were_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import numpy\nkept = numpy.{0}((50, 1_000_000))\n" + EPOCH.replace("{epochs}", "1")
    low, high = followed(tmp_path, monkeypatch, body.format("zeros")).loading.arrays
    assert (low < 100e6, high) == (True, 400e6)
    low, high = followed(tmp_path, monkeypatch, body.format("ones")).loading.arrays
    assert 395e6 < low <= 400e6 <= high


EVALUATION = """
outputs = []
with torch.no_grad():
    for x, y in DataLoader(data, batch_size=50):
        outputs.append(model[0](x))
    {join}
for _ in range(2):
    update(*data[:50])
"""


@pytest.mark.parametrize(
    ("join", "times"),
    [
        ("whole = torch.cat(outputs)", 1),
        ("whole = torch.stack(outputs)", 1),
        ("whole = torch.cat(outputs).softmax(1)", 2),
        ("whole = torch.cat(outputs).mean()", 1),
        ("import numpy\n    whole = numpy.concatenate([output.numpy() for output in outputs])", 1),
        ("import numpy\n    whole = numpy.vstack(tuple(output.numpy() for output in outputs))", 1),
        ("whole = torch.cat(outputs)[:, :1]; alike = whole @ whole.T", 1 + 25),
        ("whole = torch.cat([model[0](data.tensors[0][:50]) for _ in range(4)])", 0),
    ],
)
def test_what_is_joined_of_omitted_rounds_is_as_large_as_all_of_them(
    join: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = 5000 * 200 * 4
    with_it, without = (most(tmp_path, monkeypatch, EVALUATION.format(join=what)) for what in (join, "pass"))
    assert with_it - without == pytest.approx(times * whole, abs=0.2 * whole)


def test_arrays_that_are_joined_are_as_many_as_all_rounds_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
import numpy
arrays = []
with torch.no_grad():
    for start in range(0, 5000, 50):
        model(data.tensors[0][start:start + 50])
        arrays.append(numpy.ones((50, 500)))
    {join}
for _ in range(2):
    update(*data[:50])
"""
    with_it, without = (
        most(tmp_path, monkeypatch, body.format(join=what)) for what in ("numpy.concatenate(arrays)", "pass")
    )
    assert with_it - without == pytest.approx(5000 * 500 * 8, rel=0.2)
