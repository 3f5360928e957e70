"""Loaders of a script that is followed: samplers, what workers take, and batches of which not all were seen."""

from __future__ import annotations

import multiprocessing
from collections import UserDict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.fit import jobs
from tests.fit.test_script import followed
from torch.utils.data import DataLoader

from stepscope.analysis.memory.limits import ADDRESSES, DATA, UNMEASURED
from stepscope.footprint.script_loaders import _LoaderState
from stepscope.footprint.script_loop_items import tensors_of
from stepscope.footprint.simulator import LoaderMemory

SAMPLERS = """
import itertools
from torch.utils.data import WeightedRandomSampler
for x, y in DataLoader(data, batch_size=100, sampler=WeightedRandomSampler(torch.ones(5000), 20_000)):
    update(x, y)
class Endless:
    def __iter__(self):
        return itertools.repeat([1, 2, 3])
for step, (x, y) in enumerate(DataLoader(data, batch_sampler=Endless())):
    update(x, y)
    if step == 3:
        break
"""


def test_a_sampler_may_have_no_end_and_may_take_a_sample_more_than_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = followed(tmp_path, monkeypatch, SAMPLERS)
    assert watched.stopped is None
    assert "a sampler without an end in sight, beyond its first batches" in watched.missed


def test_a_sampler_needs_no_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
class Backwards:
    def __iter__(self):
        return iter(range(len(data) - 1, -1, -1))
class Unsaid(Backwards):
    def __len__(self):
        raise NotImplementedError
for sampler in (Backwards(), Unsaid()):
    for x, y in DataLoader(data, batch_size=16, sampler=sampler):
        update(x, y)
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert (watched.stopped, watched.missed) == (None, ())


WORKERS = """
from torch.utils.data import Dataset
class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, n):
        large = torch.ones(100, 25_000)
        return large.sum(1), 0
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for x, y in DataLoader(Rows(), batch_size=8, num_workers=2):
        update(x, y)
    for x, y in DataLoader(Rows(), batch_size=8, num_workers=2):
        model(x)
"""
PARAMETERS = 4 * (100 * 200 + 200 + 200 * 10 + 10)  # B
LARGE = 4 * 100 * 25_000


def test_workers_keep_what_the_training_writes_to_and_take_what_a_sample_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anew = followed(tmp_path, monkeypatch, WORKERS).loading
    assert 4 * PARAMETERS <= anew.old <= 4 * PARAMETERS + 1000  # parameters, their gradients and two moments
    assert 2 * 0.99 * LARGE <= anew.copied <= 2 * 2.2 * LARGE
    assert anew.bytes(replace(UNMEASURED, worker=(0, 0)))[1] == anew.batches[1] + anew.copied + anew.old


def test_batches_of_one_sample_may_be_larger_than_those_that_were_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "data = [(torch.ones(100 if n < 9 else 200), 0) for n in range(30)]\n"
    (missed,) = followed(
        tmp_path, monkeypatch, body + "for x, y in DataLoader(data):\n    update(x[:, :100], y)\n"
    ).missed
    assert missed == "26 batches of a loader of one sample, which may be larger"


def test_tensors_of_a_batch_are_found_in_mappings_and_objects() -> None:
    one, two = torch.ones(2), torch.ones(3)
    graph = SimpleNamespace(store=SimpleNamespace(mapping={"x": one}))
    graph.store.parent = graph
    assert [len(tensor) for tensor in tensors_of([UserDict(a=one, b=two), {"graph": graph}])] == [2, 3]


BY_LENGTH = """
class Buckets:
    batch_size = 4
    def __init__(self): self.lengths = [10] * 4 + [90] * 4 + [30] * 4
    def __len__(self): return 30
    def __iter__(self): return iter([[0, 1, 2, 3]] * 10 + [[4, 5, 6, 7]] * 10 + [[8, 9, 10, 11]] * 10)
data = [(torch.ones(100, n), 0) for n in Buckets().lengths]
for x, y in DataLoader(data, batch_sampler=Buckets()):
    update(x.mean(2), y)
"""


def test_a_sampler_of_the_users_own_may_put_the_large_samples_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (missed,) = followed(tmp_path, monkeypatch, BY_LENGTH).missed
    assert "of one sample, which may be larger" in missed or "not of one size" in missed


def test_the_most_workers_of_any_pass_count_and_arrays_wait_as_tensors_do() -> None:
    plain, other = LoaderMemory(4, batches=(10, 100)), LoaderMemory(8, batches=(10, 70))
    both = plain.or_more(other)
    assert both.bytes(replace(UNMEASURED, worker=(5, 50))) == (4 * 5 + 10, 8 * 50 + 100)
    low, high = both.private_bytes(DATA)
    assert (low, high) == (0, 8 * (8 << 20))  # the stack of a thread that hands out work
    assert both.private_bytes(ADDRESSES)[1] > high + 8 * (64 << 20)
    loader = _LoaderState(DataLoader([0], num_workers=2))  # type: ignore[arg-type]
    loader.note_batch([np.zeros(1000), b"0123", torch.zeros(5)])
    assert loader.waiting[0] == 8000 + 4 + 20


SPAWNED = """
import multiprocessing
import numpy as np
{first}
class Rows(torch.utils.data.Dataset):
    table = None
    def __init__(self):
        self.table = np.ones((64, 25_000), np.float32)
    def __len__(self):
        return 64
    def __getitem__(self, n):
        return torch.from_numpy(self.table[n, :100]), 0
for x, y in DataLoader(Rows(), batch_size=8, num_workers=2{context}):
    update(x, y)
"""
TABLE = 64 * 25_000 * 4  # B


@pytest.mark.parametrize(
    ("first", "context", "anew"),
    [
        ("", "", 0),
        ("", ", multiprocessing_context='spawn'", 2),
        ("multiprocessing.set_start_method('forkserver')", "", 2),
    ],
)
def test_workers_that_are_no_forks_import_everything_again_and_have_the_data_to_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, context: str, anew: int
) -> None:
    method = multiprocessing.get_start_method(allow_none=True)
    loading = followed(tmp_path, monkeypatch, SPAWNED.format(first=first, context=context)).loading
    assert multiprocessing.get_start_method(allow_none=True) == method  # as it was before the script
    assert loading.anew == anew
    assert (loading.copied > 3 * TABLE) is bool(anew)  # each worker's, and what is pickled for them
    environment = jobs.MEASURED.environment
    low, high = loading.bytes(environment)
    least, most = (environment.charged[0] // 2, environment.resident[1]) if anew else environment.worker
    assert low == pytest.approx(2 * least + loading.batches[0], abs=2)
    assert high == 2 * most + loading.batches[1] + loading.copied + loading.old
