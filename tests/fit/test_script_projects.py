"""Scripts as projects have them: modules of their own, long loops, updates by hand, samplers without an end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.fit.test_script import answered, followed
from tests.fit.test_script_loops import most

from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint.script import dry_run_script
from stepscope.footprint.script_loop_items import FollowedItems
from stepscope.footprint.simulator import live_peak
from stepscope.record.dry.storage_log import nothing_hidden
from stepscope.record.fault_boundary import is_foreign

ENGINE = """
from __future__ import annotations
import inspect
import torch
from ..helpers import Rounds
__all__ = ["fit", "evaluate"]
def evaluate(model):
    \"\"\"An evaluation.\"\"\"
    with torch.no_grad():
        model(torch.zeros(5000, 100))
def fit(model, update, batches):
    rounds = Rounds()
    for step in range(100_000):
        update(*batches)
        if rounds.count():
            evaluate(model)
    return step
assert "An evaluation" in inspect.getsource(evaluate)
"""
HELPERS = """
class Rounds:
    made = 0
    def count(self):
        self.made += 1
        return self.made % 500 == 0
"""


def project(tmp_path: Path) -> str:
    (tmp_path / "pkg/inner").mkdir(parents=True)
    (tmp_path / "pkg/__init__.py").write_text("")
    (tmp_path / "pkg/inner/__init__.py").write_text("from .engine import *\n")
    (tmp_path / "pkg/inner/engine.py").write_text(ENGINE)
    (tmp_path / "pkg/helpers.py").write_text(HELPERS)
    return "from pkg.inner import fit\nassert fit(model, update, data[:50]) == 99_999\n"


def test_loops_and_counters_in_modules_of_a_script_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = followed(tmp_path, monkeypatch, project(tmp_path))
    assert found.missed == ()
    assert found.forced == ("what runs at line 15 of engine.py only where rounds.count()",) or (
        found.forced == ("what runs at line 6 of helpers.py only where self.made % 500 == 0",)
    )
    assert found.later is not None
    assert live_peak(found.later).high - live_peak(found.log).high > 5000 * 100 * 4
    assert not [name for name in sys.modules if name.partition(".")[0] == "pkg"]
    assert not list(tmp_path.rglob("*.pyc"))


def test_an_error_in_a_module_of_a_script_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = project(tmp_path).replace("data[:50]", "[1]")
    with pytest.raises(StepscopeError, match=r"fails by itself: line 14 of engine.py: TypeError"):
        followed(tmp_path, monkeypatch, body)


def test_a_long_loop_before_the_training_is_run_as_it_is_and_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, plain = [], FollowedItems.note_in_order

    def see(items: FollowedItems, item: object) -> None:
        seen.append(item)
        plain(items, item)

    monkeypatch.setattr(FollowedItems, "note_in_order", see)
    body = """
total, words = 0, []
for number in range(20_000):
    total += number
    if number % 2 == 0:
        words.append(number)
assert (total, len(words)) == (199_990_000, 10_000)
for number in range(20):
    if number < 5:
        continue
    update(*data[:50])
assert number == 19
"""
    assert followed(tmp_path, monkeypatch, body).missed == ()
    assert len(seen) < 10
    assert seen[0] == 5  # rounds without an op do not count as the first ones


def test_a_sampler_of_more_samples_than_any_memory_holds_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
from torch.utils.data import RandomSampler
sampler = RandomSampler(data, replacement=True, num_samples=10**10)
batches = iter(DataLoader(data, sampler=sampler, batch_size=64, num_workers=2))
while True:
    update(*next(batches))
"""
    found = answered(tmp_path, monkeypatch, body)
    assert (found.verdict, found.at_least) == ("likely fits", False)
    assert found.unsure == ("not followed: rounds of the loop at line 19 after 11 updates",)


BY_NEXT = """
batches = iter(DataLoader(data, batch_size=500, num_workers=2))
seen = 0
for step in range({rounds}):
    try:
        batch = next(batches)
    except {expected}:
        batches = iter(DataLoader(data, batch_size=500))
        batch = next(batches)
    update(*batch)
"""


@pytest.mark.parametrize("expected", ["StopIteration", "KeyError"])
def test_batches_that_are_fetched_one_by_one_end_where_they_end(
    expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert followed(tmp_path, monkeypatch, BY_NEXT.format(rounds=10, expected=expected)).missed == ()
    more = "for _ in range(11):\n    next(batches)\n"
    found = followed(tmp_path, monkeypatch, BY_NEXT.format(rounds=10, expected=expected) + more)
    assert len(found.missed) == 1
    assert found.missed[0].startswith("what comes after 4 updates")
    assert found.missed[0].endswith("line 26: StopIteration: ")


WHILE = """
done, kept = 0, []
while {test}:
    loss = update(*data[:50])
    {round}
    done += 1
    if done == 4000:
        break
{after}
"""


def test_what_comes_after_a_while_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after = "with torch.no_grad():\n    model(torch.zeros(5000, 100))\n"
    found = followed(tmp_path, monkeypatch, WHILE.format(test="True", round="pass", after=after))
    plain = followed(tmp_path, monkeypatch, WHILE.format(test="True", round="pass", after=""))
    assert live_peak(found.log).high - live_peak(plain.log).high > 5000 * 100 * 4
    assert found.missed == ("rounds of the loop at line 17 after 11 updates",)
    assert not found.rest_unknown


def test_what_fails_after_a_while_that_was_ended_early_is_no_fault_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = WHILE.format(test="True", round="pass", after="print(best)").replace(
        "        break", "        best = loss; break"
    )
    found = answered(tmp_path, monkeypatch, body)
    assert (found.verdict, found.at_least) == ("likely fits", False)
    assert any("NameError" in why for why in found.unsure)


def test_a_while_that_ends_by_itself_is_followed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = followed(tmp_path, monkeypatch, WHILE.format(test="done < 9", round="pass", after="assert done == 9"))
    assert found.missed == ()


def test_what_only_omitted_rounds_of_a_while_run_is_followed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = "if done % 500 == 499:\n        model[0](torch.zeros(5000, 100))"
    found = followed(tmp_path, monkeypatch, WHILE.format(test="True", round=evaluation, after=""))
    assert found.forced == ("what runs at line 19 only where done % 500 == 499",)
    assert found.later is not None
    assert live_peak(found.later).high - live_peak(found.log).high > 5000 * 100 * 4


def test_of_a_while_whose_rounds_keep_something_the_most_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answered(
        tmp_path, monkeypatch, WHILE.format(test="True", round="kept.append(model(data[:50][0]))", after="")
    )
    assert (found.verdict, found.at_least) == ("cannot tell", True)
    assert any("that each of them keeps" in why for why in found.unsure)


BY_HAND = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))
weight = torch.zeros(10, 10, requires_grad=True)
for step in range(30):
    (model(torch.zeros(50, 100)) @ weight).sum().backward()
    {update}
"""


@pytest.mark.parametrize(
    "update",
    [
        "for p in model.parameters(): p.data.add_(p.grad, alpha=-0.1)",
        "with torch.no_grad(): weight -= 0.1 * weight.grad",
        "with torch.no_grad(): torch._foreach_sub_(list(model.parameters()), [p.grad for p in model.parameters()])",
    ],
)
def test_updates_by_hand_count_as_those_of_an_optimizer(
    update: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(BY_HAND.format(update=update))
    assert dry_run_script("train.py", [], nothing_hidden).missed == ()
    Path("train.py").write_text(BY_HAND.format(update="weight.grad = None"))
    with pytest.raises(UsageError, match="ended without an optimizer step"):
        dry_run_script("train.py", [], nothing_hidden)


def test_an_end_of_patience_that_breaks_a_context_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
from stepscope.footprint.time_limit import TimeLimitReached
update(*data[:50])
update(*data[:50])
try:
    raise TimeLimitReached("45 s are over", 7)
finally:
    raise RuntimeError("no mode was active")
"""
    found = followed(tmp_path, monkeypatch, body)
    assert found.missed == ("what comes after 2 updates: 45 s are over, at line 7",)
    assert found.stopped is None


def test_libraries_of_a_user_and_of_debian_are_none_of_the_training() -> None:
    assert is_foreign("/home/user/work/train.py")
    assert not is_foreign("/home/user/.local/lib/python3.10/site-packages/torch/optim/sgd.py")
    assert not is_foreign("/usr/lib/python3/dist-packages/torch/optim/sgd.py")


SHADOWED = """
def next(x):
    return x + 1
def enumerate(x):
    return x * 2
def doubled(values):
    return [value * 2 for value in values]
def loops():
    total = 0
    for number in range(4):
        total += number
    return total, next(3), enumerate(4)
"""
LOOKS = """
import importlib.util, inspect, runpy, types
import shadowed
assert shadowed.loops() == (6, 4, 8)
assert sorted(name for name, _ in inspect.getmembers(shadowed, inspect.isfunction)) == [
    "doubled", "enumerate", "loops", "next"]
assert not [name for name in vars(shadowed) if name in ("__rounds__", "__goes_on__", "__next_or_omitted__")]
assert runpy.run_module("shadowed")["loops"]() == (6, 4, 8)
spec = importlib.util.find_spec("shadowed")
names = {}
exec(spec.loader.get_code("shadowed"), names)
assert types.FunctionType(names["doubled"].__code__, {})([1]) == [2]
spec = importlib.util.spec_from_file_location("by_path", "by/path.py")
by_path = importlib.util.module_from_spec(spec)
spec.loader.exec_module(by_path)
assert by_path.loops() == (6, 4, 8)
def of(next):
    return next(3)
assert of(lambda number: number + 4) == 7
for _ in range(2):
    update(*data[:50])
"""


def test_code_that_looks_at_itself_sees_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "by").mkdir()
    for file in ("shadowed.py", "by/path.py"):
        (tmp_path / file).write_text(SHADOWED)
    found = followed(tmp_path, monkeypatch, LOOKS)
    assert (found.stopped, found.missed) == (None, ())
    assert not list(tmp_path.rglob("*.pyc"))


def test_what_a_branch_at_the_end_of_a_round_changes_works_in_the_round_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
model[0].requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters())
rows = 50
{head}
    for x, y in DataLoader(data, batch_size=50, shuffle=True):
        update(x, y)
    if epoch == {at}:
        model.append(nn.Linear(10, 200_000))
        optimizer.add_param_group(dict(params=model[-1].parameters()))
        model[0].requires_grad_(True)
"""
    learned = 4 * 10 * 200_000 * 4  # the weights, their gradients, and both averages of Adam
    plain = most(tmp_path, monkeypatch, body.format(head="for epoch in range(40):", at=-1))
    for head in ("for epoch in range(40):", "for epoch in [*range(40)]:"):
        found = followed(tmp_path, monkeypatch, body.format(head=head, at=5))
        assert found.later is not None
        assert live_peak(found.later).high - plain > learned
        assert len(found.forced) == 1


def test_of_updates_that_keep_something_outside_of_any_loop_the_most_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
def step(number):
    loss = update(*data[:50])
    return model(data[:50][0]) if {keeps} else loss.item()
results = list(map(step, range(400)))
"""
    found = answered(tmp_path, monkeypatch, body.format(keeps=True))
    assert (found.verdict, found.at_least) == ("cannot tell", True)
    assert any("that each update keeps" in why for why in found.unsure)
    assert answered(tmp_path, monkeypatch, body.format(keeps=False)).verdict == "likely fits"
