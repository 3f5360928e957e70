"""What of a script depends on rounds that were omitted: flags that are handed on, `match`, sizes that are looked up."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from tests.fit.test_script import followed
from tests.fit.test_script_doubts import EVALUATES, LARGE, most

from stepscope.footprint.script_syntax import MatchesToBranches
from stepscope.footprint.simulator import live_peak


@pytest.mark.parametrize(
    "loop",
    [
        "def train(x, late):\n update(*x)\n if late:\n  evaluate()\n"
        "for epoch in range(100):\n train(data[:8], epoch % 10 == 5)",
        "def train(late=False):\n late_now = late and len(data)\n update(*data[:8])\n if late_now:\n  evaluate()\n"
        "def main():\n for epoch in range(100):\n  now = epoch == 50\n  train(late=now)\nmain()",
        "class State: late = False\ndef train():\n update(*data[:8])\n if State.late:\n  evaluate()\n"
        "for epoch in range(100):\n State.late = epoch == 50\n train()",
        "def inner(late):\n if late:\n  evaluate()\ndef train(late):\n update(*data[:8])\n inner(late)\n"
        "for epoch in range(100):\n train(epoch == 50)",
        "for epoch in range(100):\n update(*data[:8])\n match epoch:\n  case 50:\n   evaluate()\n  case _:\n   pass",
        "for epoch in range(100):\n update(*data[:8])\n match (epoch % 10, 'a'):\n"
        "  case (0 | 5, 'a' as name) if name and epoch > 20:\n   evaluate()",
    ],
)
def test_flags_that_are_worked_out_of_rounds_and_handed_on_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    watched = followed(tmp_path, monkeypatch, f"{EVALUATES}{loop}\n")
    assert len(watched.forced) == 1
    assert most(watched) > LARGE


@pytest.mark.parametrize(("flag", "reached"), [("False", False), ("True", True)])
def test_what_a_flag_has_switched_off_in_all_rounds_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, reached: bool
) -> None:
    loop = f"""
def train(epochs, use_ema):
    for epoch in range(epochs):
        update(*data[:8])
        if use_ema and epoch % 10 == 5:
            evaluate()
train(100, {flag})
"""
    watched = followed(tmp_path, monkeypatch, f"{EVALUATES}{loop}")
    assert bool(watched.forced) is reached
    assert (most(watched) > LARGE) is reached
    assert watched.missed == ()


@pytest.mark.parametrize(
    ("body", "is_named"),
    [
        ("sizes = {{e: [8] for e in range(100)}} | {{50: [{0}]}}\n"
         "for e in range(100):\n update(*data[: sizes[e][0]])", True),
        ("sizes = {{50: {0}}}\nfor e in range(100):\n update(*data[: sizes.get(e, 8)])", True),
        ("sizes = [(8, 1)] * 50 + [({0}, 1)] + [(8, 1)] * 49\ndef train(e):\n size, _ = sizes[e]\n"
         " update(*data[:size])\nfor e in range(100):\n train(e)", True),
        ("import numpy as np\nsizes = np.array([8] * 50 + [{0}] + [8] * 49)\n"
         "for e in range(100):\n update(*data[: int(sizes[e])])", True),
        ("from bisect import bisect\nfor e in range(99):\n"
         " update(*data[: [(8,), ({0},), (9,)][bisect([33, 66], e)][0]])", True),
        ("order = [n * 7 % 101 for n in range(101)]\nfor e in range(101):\n order[e]\n update(*data[:{0}])", False),
    ],
)  # fmt: skip
def test_larger_sizes_that_omitted_rounds_look_up_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, is_named: bool
) -> None:
    watched = followed(tmp_path, monkeypatch, f"{body.format(2000)}\n")
    assert any("whose data are larger" in words for words in watched.missed) is is_named
    watched = followed(tmp_path, monkeypatch, f"{body.format(8)}\n")
    assert watched.missed == ()


@pytest.mark.parametrize(
    "loop",
    [
        "for e in range(101):\n update(*data[: 8 << (e % 50 // 4)])",
        "base = 4\nfor e in range(101):\n phase = e % 50 // 4\n size = base * 2 * 2**phase\n update(*data[:size])",
        "class args: base = 8\ndef size_of(epoch, of):\n return int(of * 2 ** (epoch % 50 // 4))\n"
        "def train(epoch, base):\n for k in range(2):\n  update(*data[: size_of(epoch, of=base)])\n"
        "def main():\n for e in range(101):\n  train(e, args.base)\nmain()",
        "sizes = {e: 8 for e in range(100)} | {50: 5000}\nfor e in range(100):\n update(*data[: sizes[e]])",
        "sizes = [8] * 50 + [5000] + [8] * 49\ndef train(e):\n update(*data[: sizes[e]])\n"
        "for e in range(100):\n train(e)",
        "sizes = (8, 5000, 9)\nfor e in range(99):\n update(*data[: sizes[e // 33]])",
        "from bisect import bisect\nfor e in range(99):\n update(*data[: [8, 5000, 9][bisect([33, 66], e)]])",
        "from bisect import bisect\nsizes, ends = (8, 5000, 9), [33, 66]\nfor e in range(99):\n"
        " update(*data[: sizes[bisect(ends, e)]])",
        "for e in range(101):\n update(*data[len(data) - (8 << (e % 50 // 4)) :])",
    ],
)
def test_the_rounds_with_the_largest_sizes_that_are_worked_out_or_looked_up_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    watched = followed(tmp_path, monkeypatch, f"{loop}\n")
    assert most(watched) > 8_000_000  # B: of all samples at once; of the first eight it is a quarter
    assert watched.missed == ()


def test_what_is_no_number_is_not_computed_with_to_know_later_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = "weight = torch.ones(3)\nfor e in range(5000):\n update(*data[:8])\n scale = weight * (e % 900)\n"
    watched = followed(tmp_path, monkeypatch, loop)
    assert watched.log.ops < 500


SOURCE = """
def name_of(value, other=0):
    match value, other:
        case 1 | 2, 0: return "few"
        case None, _: return "none"
        case n, 5 if n > 7: return f"many {n}"
    match value:
        case "x" as letter: return letter
        case {"k": k}: return k
    match [value]:
        case True: return "never"
        case (found): return found
"""


def test_a_match_that_is_written_as_branches_does_the_same() -> None:
    plain: dict[str, Any] = {}
    branches: dict[str, Any] = {}
    exec(SOURCE, plain)
    tree = ast.fix_missing_locations(MatchesToBranches().visit(ast.parse(SOURCE)))
    assert sum(isinstance(part, ast.Match) for part in ast.walk(tree)) == 1  # what takes a dictionary apart
    exec(compile(tree, "names", "exec"), branches)
    for values in ((1,), (2, 1), (None,), (9, 5), (7, 5), ("x",), ({"k": 3},), (4.5,)):
        assert branches["name_of"](*values) == plain["name_of"](*values)


def test_what_rounds_leave_in_cycles_of_references_piles_up_until_python_collects_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
class Output:
    def __init__(self, value):
        self.value, self.me = value, self
for n in range(41):
    kept = Output(model[0](torch.ones(1000, 100)))
    kept.value.sum().backward()
    optimizer.step()
"""
    of_a_round = 1000 * 200 * 4  # B of an output, and nothing less of its input
    watched = followed(tmp_path, monkeypatch, body)
    assert live_peak(watched.log).high > 20 * of_a_round
    assert live_peak(watched.log).low < 8 * of_a_round
    assert any("before Python collects the cycles" in words for words in watched.missed)


def test_many_small_tensors_that_rounds_keep_lie_in_the_heap_though_they_are_counted_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "kept = []\nfor n in range(400):\n    update(*data[:8])\n    kept.append(torch.zeros(250_000))\n"
    live = live_peak(followed(tmp_path, monkeypatch, body).log)
    assert live.high_in_heap > 390 * 1e6
    assert live.mapped == 0
