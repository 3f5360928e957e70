"""The readers of the full data sets, on small archives of the same form; none is downloaded."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope import workloads
from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError, UsageError
from stepscope.workloads.data import cache, catalogue, folder, pictures, questions, signals, text, translation
from stepscope.workloads.data.cache import DataSet
from stepscope.workloads.data.source import Batch, Splits, find_source
from stepscope.workloads.data.text import WindowForm


def put(name: str, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """The data set of this name in the catalogue, with these contents in the cache and their checksums."""
    published: DataSet = getattr(catalogue, name)
    files = tuple(
        replace(file, checksum=f"sha256:{hashlib.sha256(contents[file.name]).hexdigest()}") for file in published.files
    )
    dataset = replace(published, files=files)
    monkeypatch.setattr(catalogue, name, dataset)
    for file in files:
        where = cache.path(dataset, file)
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(contents[file.name])
    return dataset


def tar_gz(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def idx_file(array: np.ndarray) -> bytes:
    header = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def idx_files() -> dict[str, bytes]:
    images = np.arange(30 * 28 * 28).reshape(30, 28, 28) % 251
    labels = np.arange(30) % 10
    parts = (images, labels, images[:20], labels[:20])
    return {file.name: idx_file(part) for file, part in zip(catalogue.MNIST.files, parts, strict=True)}


def first(splits: Splits) -> Batch:
    assert splits.train is not None
    return splits.train[0]


def test_mnist_is_read_from_its_four_files(monkeypatch: pytest.MonkeyPatch) -> None:
    read = pictures._read_idx(put("MNIST", idx_files(), monkeypatch))
    assert (read.facts.train_size, read.facts.test_size, read.facts.kind) == (30, 20, "real-full")
    assert read.train.images[3, 0, 0, :3].tolist() == [(3 * 784 + n) % 251 for n in range(3)]
    assert read.train.labels.tolist() == [n % 10 for n in range(30)]


def test_a_full_set_that_is_here_is_preferred_to_a_part() -> None:
    lenet = workloads.find("lenet")
    assert lenet.data.name == "mnist-5k"
    for file in catalogue.MNIST.files:
        where = cache.path(catalogue.MNIST, file)
        where.parent.mkdir(parents=True, exist_ok=True)
        where.touch()
    assert (lenet.data.name, lenet.data.kind) == ("mnist", "real-full")


def test_other_content_than_published_is_refused() -> None:
    for file in catalogue.MNIST.files:
        where = cache.path(catalogue.MNIST, file)
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataUnavailable, match="not what was published") as caught:
        workloads.find("lenet").prepare()
    assert caught.value.hint == "stepscope data fetch mnist"


def test_fashion_mnist_of_debian_is_checked_by_its_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pictures, "DEBIAN", tmp_path)
    for name, content in idx_files().items():
        (tmp_path / name).write_bytes(content)
    assert workloads.find("resnet18-c32").data.name == "fashion-mnist"
    with pytest.raises(DataUnavailable, match="not what Debian packaged"):
        workloads.find("resnet18-c32").prepare()
    contents = {name: gzip.decompress(content) for name, content in idx_files().items()}
    monkeypatch.setattr(pictures, "_DEBIAN_SHA256", {n: hashlib.sha256(c).hexdigest() for n, c in contents.items()})
    assert workloads.find("resnet18-c32").prepare(batch=2).data.train_size == 30


@given(st.binary(max_size=40))
@settings(max_examples=60, deadline=None)
def test_whatever_is_no_idx_file_is_refused(content: bytes) -> None:
    try:
        read = pictures.idx_tensor(content, "t10k-labels")
    except DataUnavailable:
        return
    assert content[:3] == b"\0\0\x08"
    assert read.numel() == len(content) - 4 - 4 * content[3]


def cifar_record(label: int) -> bytes:
    return bytes([label]) + bytes(range(256)) * 12


def test_cifar_is_read_from_its_binary_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"cifar-10-batches-bin/data_batch_{n}.bin": cifar_record(n) + cifar_record(0) for n in range(1, 6)}
    packed = tar_gz({**files, "cifar-10-batches-bin/test_batch.bin": cifar_record(9)})
    put("CIFAR10", {"cifar-10-binary.tar.gz": packed}, monkeypatch)
    read = pictures._read_cifar()
    assert read.train.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert read.test.labels.tolist() == [9]
    assert read.train.images[0, 0, 0, :3].tolist() == [0, 1, 2]
    assert read.train.images[0, 1, 0, 0] == 1024 % 256
    assert tuple(read.train.images.shape) == (10, 3, 32, 32)


@pytest.mark.parametrize("packed", [b"no archive", tar_gz({"other.bin": b""})], ids=["garbage", "other files"])
def test_a_cifar_archive_of_another_form_is_refused(packed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    put("CIFAR10", {"cifar-10-binary.tar.gz": packed}, monkeypatch)
    with pytest.raises(DataUnavailable, match="CIFAR-10"):
        pictures._read_cifar()


@pytest.mark.parametrize("size", [0, 1, 3074])
def test_a_broken_cifar_record_is_refused(size: int) -> None:
    with pytest.raises(DataUnavailable, match="records"):
        pictures.cifar_records(bytes(size))


def test_pictures_are_padded_for_a_little_and_scaled_for_more() -> None:
    ones = torch.ones(1, 1, 28, 28)
    assert pictures.fit_images(ones, 32, 32)[0, 0, :2].sum() == 0
    assert pictures.fit_images(ones, 32, 32).sum() == 28 * 28
    assert pictures.fit_images(ones, 224, 224).sum() == 224 * 224
    assert pictures.fit_images(ones, 14, 14).shape == (1, 1, 14, 14)


def test_one_digit_is_the_same_whatever_way_it_is_asked_for() -> None:
    train = workloads.find("mobilenet-v2-c32").data.load().train
    assert isinstance(train, pictures.Resized)
    many = train.__getitems__([5, 6])
    assert torch.equal(many[1][0], train[6][0])
    assert tuple(train[6][0].shape) == (3, 32, 32)


def test_text_windows_overlap_by_one_token_and_hold_the_next() -> None:
    windows = WindowForm("characters", vocabulary=40, length=16)
    splits = find_source(text.sources(windows), "python-topics").load()
    tokens, follows = first(splits)
    assert torch.equal(tokens[1:], follows[:-1])
    assert splits.train is not None
    assert splits.train[1][0][0] == follows[-1]
    assert int(max(tokens.max(), follows.max())) < 40


def test_shakespeare_needs_no_more_than_its_65_characters() -> None:
    splits = text._load(text.SHAKESPEARE, WindowForm("characters", vocabulary=65, length=80))
    assert splits.facts.kind == "real-full"
    assert splits.train is not None
    seen = torch.cat([splits.train[place][0] for place in range(len(splits.train))])  # type: ignore[arg-type]
    assert torch.bincount(seen, minlength=65).gt(0).all()


@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(2, 8), st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_vocabulary_keeps_the_most_frequent_and_a_number_for_the_rest(
    units: list[str], size: int, reserved: int
) -> None:
    numbers = text.vocabulary_of(units, size, reserved)
    assert sorted(numbers.values()) == list(range(reserved, reserved + len(numbers)))
    dropped = set(units) - set(numbers)
    if dropped:
        assert len(numbers) == size - reserved - 1
        most = max(units.count(unit) for unit in dropped)
        assert all(units.count(unit) >= most for unit in numbers)


def test_a_text_of_the_users_is_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "diary.txt"
    path.write_text("Dear diary, today nothing happened. " * 200, encoding="utf-8")
    training = workloads.find("char-gpt-64").prepare(batch=2, data=path)
    assert (training.data.name, training.data.kind) == ("diary.txt", "real-full")
    assert torch.isfinite(training.step(next(training.batches())))


@pytest.mark.parametrize("content", [b"short", b"\xff\xfe\xfd" * 2000])
def test_a_text_that_cannot_be_trained_on_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "diary.txt"
    path.write_bytes(content)
    with pytest.raises(StepscopeError, match=r"diary\.txt"):
        workloads.find("char-gpt-64").prepare(data=path)
    with pytest.raises(UsageError, match="no text file"):
        workloads.find("char-gpt-64").prepare(data=tmp_path)


def squad_file(questions: int) -> bytes:
    context = "The quick brown fox jumps over the lazy dog. " + "It rains. " * 40
    asked = [
        {"question": f"Who jumps, number {n}?", "answers": [{"text": "quick brown fox", "answer_start": 4}]}
        for n in range(questions)
    ]
    far = {"question": "What else?", "answers": [{"text": "rains", "answer_start": context.rindex("rains")}]}
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [*asked, far]}]}]}).encode()


def test_squad_marks_the_words_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    put("SQUAD", {"train-v1.1.json": squad_file(4), "dev-v1.1.json": squad_file(2)}, monkeypatch)
    splits = questions._load_squad(32)
    tokens, types, mask, start, end = first(splits)
    assert (splits.facts.train_size, splits.facts.test_size) == (4, 2)
    assert "without 1 longer" in splits.facts.name
    assert tokens[0] == questions.CLS
    assert int(end - start) == 2
    assert int(types[int(start)]) == 1
    assert int(types[0]) == 0
    assert bool(mask.all())
    assert tokens[int(start) - 1] == tokens[int(start) + 5]  # "the" quick brown fox jumps over "the"


@pytest.mark.parametrize("content", [b"{}", b"[", b'{"data": [{"paragraphs": [{"context": 1, "qas": []}]}]}'])
def test_a_squad_file_of_another_form_is_refused(content: bytes) -> None:
    with pytest.raises(DataUnavailable, match="SQuAD"):
        list(questions.questions(content))


def test_translations_are_shifted_by_one_and_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    english, vietnamese = "the cat sleeps\nthe dog\n", "con mèo ngủ\ncon chó\n"
    contents = {
        f"{part}.{language}": lines.encode()
        for part in ("train", "tst2012", "tst2013")
        for language, lines in (("en", english), ("vi", vietnamese))
    }
    put("IWSLT15", contents, monkeypatch)
    source, written, follows = first(translation._load_iwslt())
    assert (source != translation.PADDING).sum() == 3
    assert written[0] == translation.BEGIN
    assert torch.equal(written[1:4], follows[:3])
    assert follows[3] == translation.END
    assert written[4:].sum() == 0
    put("IWSLT15", {**contents, "train.vi": b"con\n"}, monkeypatch)
    with pytest.raises(DataUnavailable, match="2 sentences in English and 1"):
        translation._load_iwslt()


def wav(samples: int, rate: int = signals.RATE) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as opened:
        opened.setnchannels(1)
        opened.setsampwidth(2)
        opened.setframerate(rate)
        opened.writeframes((np.sin(np.arange(samples) * 0.3) * 9000).astype("<i2").tobytes())
    return buffer.getvalue()


def spoken() -> dict[str, bytes]:
    others = {f"./bed/{n}.wav": wav(16_000) for n in range(12)}
    words = {"./yes/a.wav": wav(16_000), "./yes/b.wav": wav(9_000), "./no/a.wav": wav(16_000)}
    return {**others, **words, "./_background_noise_/hum.wav": wav(40_000), "./testing_list.txt": b"yes/b.wav\n"}


def test_spoken_words_become_features_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [file.name for file in catalogue.SPEECH_COMMANDS.files]
    put("SPEECH_COMMANDS", {names[0]: tar_gz(spoken()), names[1]: b""}, monkeypatch)
    splits = signals._load_speech()
    assert (splits.facts.train_size, splits.facts.test_size) == (5, 1)
    features, _ = first(splits)
    assert tuple(features.shape) == signals.SPEECH_SHAPE
    assert bool(torch.isfinite(features).all())
    assert splits.train is not None
    assert torch.stack([splits.train[n][0] for n in range(5)]).mean(dim=0).abs().max() < 0.01  # of these alone
    labels = sorted(signals.SPEECH_CLASSES[int(splits.train[n][1])] for n in range(5))
    assert labels == ["no", "silence", "silence", "unknown", "yes"]
    monkeypatch.setattr(signals, "_compute", lambda *_: pytest.fail("computed twice"))
    assert signals._load_speech().facts == splits.facts


def test_features_that_are_damaged_or_cannot_be_kept_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [file.name for file in catalogue.SPEECH_COMMANDS.files]
    put("SPEECH_COMMANDS", {names[0]: tar_gz(spoken()), names[1]: b""}, monkeypatch)
    kept = cache.path(catalogue.SPEECH_COMMANDS, catalogue.SPEECH_COMMANDS.files[0]).with_name(signals._FEATURES_FILE)
    facts = signals._load_speech().facts
    whole = kept.read_bytes()
    for damaged in (b"", whole[:200], whole[:-30], b"PK" + bytes(500)):
        kept.write_bytes(damaged)
        assert signals._load_speech().facts == facts
        assert len(kept.read_bytes()) == len(whole)
    kept.unlink()
    kept.mkdir()  # as where the folder cannot be written
    assert signals._load_speech().facts == facts


@pytest.mark.parametrize("sound", [b"RIFF", wav(100, rate=8000)], ids=["cut", "another rate"])
def test_a_sound_of_another_form_is_refused(sound: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [file.name for file in catalogue.SPEECH_COMMANDS.files]
    archive = tar_gz({**spoken(), "./yes/c.wav": sound})
    put("SPEECH_COMMANDS", {names[0]: archive, names[1]: b""}, monkeypatch)
    with pytest.raises(DataUnavailable, match=r"yes/c\.wav"):
        signals._load_speech()


def test_a_tone_has_most_of_its_power_in_one_band() -> None:
    time = torch.arange(signals.RATE) / signals.RATE
    low, high = (signals.cepstra(torch.sin(2 * torch.pi * hertz * time)) for hertz in (200, 3000))
    assert tuple(low.shape) == (49, 10)
    assert bool((low[:, 1] > high[:, 1]).all())  # the first cosine is positive for low bands


def minc_archive() -> bytes:
    image = pytest.importorskip("PIL.Image", reason="pip install 'stepscope[data]'")
    files = {"minc-2500/categories.txt": b"brick\ncarpet\n"}
    names = []
    for label in ("brick", "carpet"):
        for number in range(2):
            buffer = io.BytesIO()
            image.new("RGB", (40, 30), (200, 10 * number, 0)).save(buffer, "JPEG")
            names.append(f"images/{label}/{label}_{number}.jpg")
            files[f"minc-2500/{names[-1]}"] = buffer.getvalue()
    lists = {"train1": names[0::2], "test1": names[1::2]}
    return tar_gz({**files, **{f"minc-2500/labels/{n}.txt": "\n".join(each).encode() for n, each in lists.items()}})


def test_minc_is_unpacked_once_and_read_picture_by_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = put("MINC2500", {"minc-2500.tar.gz": minc_archive()}, monkeypatch)
    splits = folder._minc((3, 24, 24))
    assert (splits.facts.train_size, splits.facts.test_size) == (2, 2)
    image, label = first(splits)
    assert (tuple(image.shape), int(label)) == ((3, 24, 24), 0)
    cache.path(dataset, dataset.files[0]).unlink()
    assert folder._minc((3, 24, 24)).facts == splits.facts


def own_pictures(root: Path, classes: int, each: int = 5) -> Path:
    image = pytest.importorskip("PIL.Image", reason="pip install 'stepscope[data]'")
    for label in range(classes):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(each):
            image.new("L", (20 + number, 30), label * 20).save(root / f"class{label}" / f"{number}.png")
    return root


def test_a_folder_of_pictures_of_the_users_is_trained_on(tmp_path: Path) -> None:
    path = own_pictures(tmp_path / "pets", 3)
    training = workloads.find("resnet8-c32").prepare(batch=4, data=str(path))
    assert (training.data.name, training.data.train_size, training.data.test_size) == ("pets", 12, 3)
    assert training.data.kind == "real-full"
    assert torch.isfinite(training.step(next(training.batches())))
    assert training.evaluate() is not None


def test_pictures_that_cannot_be_trained_on_are_refused(tmp_path: Path) -> None:
    resnet8 = workloads.find("resnet8-c32")
    with pytest.raises(UsageError, match="11 classes"):
        resnet8.prepare(data=own_pictures(tmp_path / "many", 11, each=1))
    with pytest.raises(UsageError, match="1 subfolders"):
        resnet8.prepare(data=own_pictures(tmp_path / "one", 1))
    (tmp_path / "file.txt").touch()
    with pytest.raises(UsageError, match="no folder"):
        resnet8.prepare(data=tmp_path / "file.txt")
    path = own_pictures(tmp_path / "damaged", 2)
    for file in path.rglob("*.png"):
        file.write_bytes(b"no picture")
    with pytest.raises(DataUnavailable, match="cannot be read"):
        next(resnet8.prepare(batch=2, data=path).batches())


def test_without_pillow_the_install_line_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for label in ("cats", "dogs"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "PIL" else object())
    with pytest.raises(MissingDependency, match="Pillow"):
        folder.user_pictures((3, 32, 32), 10, tmp_path)
