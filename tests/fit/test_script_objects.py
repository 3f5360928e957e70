"""Objects that a script keeps, in omitted rounds too: lists of numbers and transitions; files that it loads or maps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.fit.test_script import answered, followed

from stepscope.analysis.memory.limits import ADDRESSES, RESIDENT

KEPT = "what omitted rounds add to lists and the like"
A_FLOAT = 8 + 32  # B, with its place in a list

OF_AN_EVALUATION = """
for epoch in range(2):
    update(*data[:8])
    scores = []
    with torch.no_grad():
        for x, y in DataLoader(TensorDataset(torch.zeros(6_400, 100)), batch_size=32):
            scores.extend(model(x).tolist())
"""
OF_EPISODES = """
import random
memory = {"episodes": []}
for episode in range(2_000):
    states = [[random.random() for _ in range(64)] for _ in range(20)]
    memory["episodes"].extend({"state": state} for state in states)
    update(*data[:8])
"""


def test_numbers_that_an_evaluation_turns_into_lists_are_counted_for_omitted_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = OF_AN_EVALUATION.replace("for x, y in", "for (x,) in").replace("model(x)", "model(x).repeat(1, 20)")
    watched = followed(tmp_path, monkeypatch, body)
    kept = 6_400 * 200 * A_FLOAT  # of one epoch: the next one begins anew
    assert 0.9 * kept < watched.loading.arrays[1] < 1.4 * kept
    assert any(words.startswith(KEPT) for words in watched.missed)


def test_lists_of_plain_python_that_grow_with_each_round_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = followed(tmp_path, monkeypatch, OF_EPISODES)
    kept = 2_000 * 20 * 64 * A_FLOAT
    assert 0.9 * kept < watched.loading.arrays[1] < 1.4 * kept
    assert any(words.startswith(KEPT) for words in watched.missed)


@pytest.mark.parametrize("keeps", ["losses.append(n)", "losses = [n] * 100", "seen = {n}"])
def test_a_loop_that_keeps_a_number_a_round_or_nothing_leaves_no_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: str
) -> None:
    body = f"losses = []\nfor n in range(3_000):\n    update(*data[:8])\n    {keeps}\n"
    watched = followed(tmp_path, monkeypatch, body)
    assert watched.missed == ()
    assert watched.loading.arrays[1] < 2e6


def test_a_state_that_torch_loads_goes_once_it_was_copied_into_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(torch.nn.Linear(1000, 1000).state_dict(), tmp_path / "large.pt")
    body = "large = nn.Linear(1000, 1000)\nlarge.load_state_dict(torch.load('large.pt'))\nupdate(*data[:8])\n"
    log = followed(tmp_path, monkeypatch, body).log
    loaded = [number for number, storage in enumerate(log.storages) if "set_" in storage.op and storage.bytes > 1e6]
    ended = [number for _, _, number, sign in log.events if sign < 0]
    assert [log.storages[number].device for number in loaded] == ["cpu"]
    assert set(loaded) <= set(ended)


def test_mapped_files_are_addresses_and_no_need_of_ram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 64 << 20  # B
    with (tmp_path / "table.bin").open("wb") as table:
        table.truncate(size)
    body = "import numpy\ntable = numpy.memmap('table.bin', dtype='uint8', mode='r')\n"
    answer = answered(tmp_path, monkeypatch, f"{body}for n in range(4):\n    update(*data[:8])\n")
    assert any("it maps files" in note for note in answer.notes)
    peaks = {by: answer.simulator.peak_of_process(answer.live, account=by) for by in (RESIDENT, ADDRESSES)}
    assert answer.simulator.loading.mapped == (size, size)
    assert peaks[RESIDENT].data[1] < size <= peaks[ADDRESSES].data[0]
