"""Loops of a script that are cut: what their rounds keep, and what of them was not seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fit.test_script import followed

from stepscope.footprint.simulator import live_peak

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
