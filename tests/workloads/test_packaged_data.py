"""What ships inside the package: real data of every kind, balanced, apart, and never read when it is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from stepscope import workloads
from stepscope.errors import DataUnavailable
from stepscope.workloads.data import catalogue, packaged, pictures, text
from stepscope.workloads.data.source import DataFacts

Read = Callable[[Path], object]


def _arrays(file: str, names: tuple[str, ...] | None, sha256: str) -> Read:
    return lambda folder: packaged.load_arrays(file, names, sha256, folder)


READERS: dict[str, Read] = {
    "digits.npz": _arrays("digits.npz", packaged.PICTURES, pictures.DIGITS_FACTS.sha256),
    "shakespeare.txt.gz": lambda folder: packaged.load_text("shakespeare.txt.gz", text._SHAKESPEARE_SHA256, folder),
}


@pytest.mark.parametrize(("facts", "each"), [(pictures.DIGITS_FACTS, 400), (pictures.CLOTHING_FACTS, 500)])
def test_train_and_test_pictures_are_balanced_and_share_none(facts: DataFacts, each: int) -> None:
    read = pictures.digits() if facts is pictures.DIGITS_FACTS else pictures.clothing()
    assert torch.bincount(read.train.labels).tolist() == [each] * 10
    assert torch.bincount(read.test.labels).tolist() == [100] * 10
    train, test = ({image.numpy().tobytes() for image in part.images} for part in (read.train, read.test))
    assert (len(train), len(test)) == (facts.train_size, facts.test_size)
    assert not train & test


def test_every_file_that_ships_is_small_and_its_licence_is_told() -> None:
    told = (packaged.FOLDER / "LICENCES.txt").read_text(encoding="utf-8")
    files = [path for path in packaged.FOLDER.iterdir() if path.name != "LICENCES.txt"]
    assert sum(path.stat().st_size for path in files) < 7_000_000
    assert [path.name for path in files if path.name not in told] == []


@pytest.mark.parametrize("file", READERS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "missing", "of another kind"])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, file: str, damage: str) -> None:
    whole = (packaged.FOLDER / file).read_bytes()
    middle = len(whole) // 2
    contents = {
        "cut": whole[:middle],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :],
        "empty": b"",
        "of another kind": b"digits",
    }
    if damage in contents:
        (tmp_path / file).write_bytes(contents[damage])
    with pytest.raises(DataUnavailable, match=file) as caught:
        READERS[file](tmp_path)
    assert "reinstall" in str(caught.value.hint)


def test_other_pictures_in_a_sound_file_are_refused(tmp_path: Path) -> None:
    arrays = packaged.load_arrays("digits.npz", packaged.PICTURES, pictures.DIGITS_FACTS.sha256)
    arrays["test_labels"] = arrays["test_labels"][::-1].copy()
    np.savez_compressed(tmp_path / "digits.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataUnavailable, match="content hash"):
        READERS["digits.npz"](tmp_path)


def test_images_are_normalised_and_padded_with_background() -> None:
    small, large = (pictures.resized_splits(pictures.digits(), shape) for shape in ((1, 28, 28), (3, 32, 32)))
    assert small.train is not None
    assert large.train is not None
    image, label = small.train[0]
    padded, same_label = large.train[0]
    assert tuple(image.shape) == (1, 28, 28)
    assert tuple(padded.shape) == (3, 32, 32)
    assert label == same_label
    assert (padded[:, 2:-2, 2:-2] == image).all()
    assert set(padded[:, :2].flatten().tolist()) == {float(padded.min())}


@pytest.mark.parametrize("name", [workload.name for workload in workloads.every() if "paper-2019" in workload.tiers])
def test_no_workload_of_the_2019_paper_is_trained_on_made_up_data_by_default(name: str) -> None:
    facts = workloads.find(name).data
    assert facts.kind.startswith("real")


def test_the_catalogue_lists_everything_that_ships() -> None:
    shipped = {each.name for each in catalogue.PACKAGED if each.get == "part of Stepscope"}
    offered = {source.name for workload in workloads.every() for source in workload.sources}
    assert shipped <= offered
    assert all(each.present() for each in catalogue.PACKAGED if each.name in shipped)


@pytest.mark.parametrize("name", ["seq2seq-en-vi-50", "bert-tiny-128", "ds-cnn-kws", "activity-gru-6x100"])
def test_what_is_tested_is_apart_from_what_is_trained_on(name: str) -> None:
    splits = workloads.find(name).data.load()
    assert splits.train is not None
    assert splits.test is not None
    train, test = (
        {b"".join(part.contiguous().numpy().tobytes() for part in data[place]) for place in range(size)}
        for data, size in ((splits.train, splits.facts.train_size), (splits.test, splits.facts.test_size))
    )
    assert len(train) > len(test) > 30 or name == "activity-gru-6x100"
    assert len(train & test) <= 0.01 * len(test)


@pytest.mark.parametrize("name", packaged.WEIGHTS)
def test_weights_that_ship_fit_their_network_and_know_pictures_that_they_never_saw(name: str) -> None:
    weights = packaged.WEIGHTS[name]
    training = workloads.find(name).prepare(16, data=weights.new)
    training.model.load_state_dict(packaged.shipped_weights(name))
    accuracy = training.evaluate()
    assert accuracy is not None
    assert accuracy == pytest.approx(weights.accuracy, abs=0.002)
    assert accuracy > 0.85
