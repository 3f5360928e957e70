"""Speech Commands v0.02 as MLPerf Tiny takes it: ten words, silence and unknown, 49 x 10 cepstral coefficients.

Origin: P. Warden, "Speech commands", 2018, arXiv:1804.03209. The features of the words are computed once, which takes
minutes, and kept beside the archive.

The Free Spoken Digit Dataset ships inside the package: 3,000 digits of six people, as the same coefficients in 8 bits.

BasicMotions ships too: 80 recordings of a watch with six axes, 100 steps each, of four activities, by J. Clements,
2016, in the UEA archive (A. Bagnall et al., arXiv:1811.00075).
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from stepscope.errors import DataUnavailable
from stepscope.files import atomic_write
from stepscope.workloads.data import cache, catalogue, packaged, synthetic
from stepscope.workloads.data.source import Batch, DataFacts, Source, Splits

SPEECH_SHAPE = (1, 49, 10)
WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
SILENCE, UNKNOWN = len(WORDS), len(WORDS) + 1
SPEECH_CLASSES = (*WORDS, "silence", "unknown")
RATE = 16_000  # samples a second; every recording is brought to one second
FRAME, HOP, BANDS, COEFFICIENTS = 480, 320, 40, 10  # 30 ms every 20 ms
_BACKGROUND = "_background_noise_"
_FEATURES_FILE = "features-49x10-v2.npz"
_ARRAYS = ("features", "labels", "test")
_EACH_UNKNOWN = 12  # of the 25 other words every twelfth recording: about as many as of one word


def cepstra(sound: Tensor) -> Tensor:
    """Mel-frequency cepstral coefficients [.., 49, 10] of sounds [.., 16000] in -1..1."""
    frames = sound.unfold(-1, FRAME, HOP) * torch.hann_window(FRAME)  # [.., 49, 480]
    power = torch.fft.rfft(frames, n=512).abs() ** 2  # [.., 49, 257]
    bands = torch.log(power @ _mel_bands() + 1e-6)  # [.., 49, 40]
    return bands @ _cosines()


@functools.cache
def _mel_bands() -> Tensor:
    """Triangles between 20 and 4000 Hz, evenly apart in mel: [257, 40]."""
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (20, 4000))
    edges = 700 * (10 ** (torch.linspace(low, high, BANDS + 2) / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, 257)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)


@functools.cache
def _cosines() -> Tensor:
    """The first 10 rows of the orthonormal cosine transform: [40, 10]."""
    angles = math.pi / BANDS * (torch.arange(BANDS)[:, None] + 0.5) * torch.arange(COEFFICIENTS)
    return angles.cos() * math.sqrt(2 / BANDS)


def recordings(archive: tarfile.TarFile, tested: frozenset[str]) -> Iterator[tuple[bool, int, Tensor]]:
    """(is it a test recording, class, sound) of everything that is used, in the order of the archive."""
    others = 0
    for member in archive:
        word, _, file = member.name.removeprefix("./").partition("/")
        if not file.endswith(".wav"):
            continue
        if word != _BACKGROUND and word not in WORDS:
            others += 1
            if others % _EACH_UNKNOWN:
                continue
        opened = archive.extractfile(member)
        sound = _sound(opened.read() if opened else b"", member.name)
        if word == _BACKGROUND:
            seconds = sound[: len(sound) // RATE * RATE].view(-1, RATE)
            yield from ((number % 10 == 9, SILENCE, second) for number, second in enumerate(seconds))
        else:
            one_second = torch.nn.functional.pad(sound[:RATE], (0, max(0, RATE - len(sound))))
            yield f"{word}/{file}" in tested, WORDS.index(word) if word in WORDS else UNKNOWN, one_second


def _sound(content: bytes, name: str) -> Tensor:
    try:
        with wave.open(io.BytesIO(content)) as opened:
            if (opened.getframerate(), opened.getsampwidth(), opened.getnchannels()) != (RATE, 2, 1):
                raise wave.Error("not 16 bits of one channel at 16 kHz")
            samples = opened.readframes(opened.getnframes())
    except (wave.Error, EOFError) as error:
        raise _damaged_speech(f"'{name}': {error}") from error
    return torch.from_numpy(np.frombuffer(samples, dtype="<i2").astype(np.float32)) / 32768


def _load_speech() -> Splits:
    dataset = catalogue.SPEECH_COMMANDS
    archive = cache.path(dataset, dataset.files[0])
    features_file = archive.with_name(_FEATURES_FILE)
    arrays = _read_features(features_file)
    if arrays is None:
        arrays = _compute(archive)
        with contextlib.suppress(OSError), atomic_write(features_file, whole=True) as part, part.open("wb") as file:
            np.savez(file, **arrays)  # of a folder that cannot be written they are computed each time
    features, labels, test = (torch.from_numpy(arrays[name]) for name in _ARRAYS)
    facts = DataFacts(
        name="speech-commands, 12 classes",
        kind="real-full",
        sha256=dataset.files[0].checksum.partition(":")[2],
        licence=dataset.licence,
        origin=dataset.files[0].urls[0],
        train_size=int((~test).sum()),
        test_size=int(test.sum()),
    )
    parts = (TensorDataset(features[chosen], labels[chosen]) for chosen in (~test, test))
    return Splits(next(parts), next(parts), facts)


def _read_features(file: Path) -> dict[str, Any] | None:
    """Return the features of an earlier call; None where there are none, or where they are damaged."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in _ARRAYS}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        return None


def _compute(archive: Path) -> dict[str, Any]:
    """Return the features of the whole archive, normalised as the training ones are; the archive is checked first."""
    if cache.verify(catalogue.SPEECH_COMMANDS)[archive.name] != "ok":
        raise _damaged_speech("the checksum of the archive is wrong")
    try:
        with tarfile.open(archive) as opened:
            listed = opened.extractfile(_name_of_list(opened))
            tested = frozenset(listed.read().decode("ascii").split() if listed else ())
        with tarfile.open(archive) as opened:
            rows = [(test, label, cepstra(sound)) for test, label, sound in recordings(opened, tested)]
    except (tarfile.TarError, OSError, EOFError, KeyError, zlib.error) as error:
        raise _damaged_speech(str(error)) from error
    features = torch.stack([values for _, _, values in rows]).unsqueeze(1)  # [N, 1, 49, 10]
    features = _normalised(features, torch.tensor([test for test, _, _ in rows]))
    labels = np.array([label for _, label, _ in rows], dtype=np.int64)
    return {"features": features.numpy(), "labels": labels, "test": np.array([test for test, _, _ in rows])}


def _name_of_list(archive: tarfile.TarFile) -> str:
    return next((name for name in archive.getnames() if name.endswith("testing_list.txt")), "testing_list.txt")


_SPOKEN = ("features", "scale", "labels", "test")
_SPOKEN_SHA256 = "c2b1a7e500d93eb4194766dd4d53341447711f395161c9bfee2b250b9bd22bb0"


def _load_spoken_digits() -> Splits:
    """The ten digits in the place of the ten words; nothing is silent or unknown."""
    arrays = packaged.load_arrays("spoken-digits.npz", _SPOKEN, _SPOKEN_SHA256)
    features, scale, labels, test = (torch.from_numpy(arrays[name]) for name in _SPOKEN)
    features = _normalised((features * scale).unsqueeze(1), test)
    facts = DataFacts(
        name="spoken-digits-3k",
        kind="real-subset",
        sha256=_SPOKEN_SHA256,
        licence="CC BY-SA 4.0, the Free Spoken Digit Dataset",
        origin="https://github.com/Jakobovski/free-spoken-digit-dataset",
        train_size=int((~test).sum()),
        test_size=int(test.sum()),
    )
    parts = (TensorDataset(features[chosen], labels[chosen].long()) for chosen in (~test, test))
    return Splits(next(parts), next(parts), facts)


def _normalised(features: Tensor, test: Tensor) -> Tensor:
    """Features [N, 1, 49, 10] whose training part has the mean 0 and the deviation 1, place by place."""
    training = features[~test]
    return (features - training.mean(dim=0)) / (training.std(dim=0) + 1e-6)


def _synthetic_speech(size: int, randomness: torch.Generator) -> Batch:
    features = torch.randn(size, *SPEECH_SHAPE, generator=randomness)
    return features, torch.randint(0, len(SPEECH_CLASSES), (size,), generator=randomness)


def _damaged_speech(what: str) -> DataUnavailable:
    name = catalogue.SPEECH_COMMANDS.name
    return DataUnavailable(f"Speech Commands cannot be read: {what}", f"stepscope data fetch {name}")


SPEECH_SOURCES = (
    Source(
        catalogue.SPEECH_COMMANDS.name,
        "real-full",
        _load_speech,
        functools.partial(cache.is_present, catalogue.SPEECH_COMMANDS),
        catalogue.SPEECH_COMMANDS.name,
    ),
    Source("spoken-digits-3k", "real-subset", _load_spoken_digits),
    synthetic.source(_synthetic_speech),
)


MOTION_SHAPE = (6, 100)  # axes, steps of 0.1 s
MOTION_CLASSES = ("Standing", "Running", "Walking", "Badminton")


_MOTION_SHA256 = "c80ffdc5bb447180012ccbec3e186ae551f1908bf43b383f28c963e9e15f536c"


def _load_motion() -> Splits:
    arrays = packaged.load_arrays("motions.npz", packaged.MOTIONS, _MOTION_SHA256)
    train, train_labels, test, test_labels = (torch.from_numpy(array) for array in arrays.values())
    mean, std = train.mean(dim=(0, 2), keepdim=True), train.std(dim=(0, 2), keepdim=True)
    facts = DataFacts(
        name="basic-motions",
        kind="real-full",
        sha256=_MOTION_SHA256,
        licence="as packaged in aeon (BSD-3-Clause)",
        origin="UEA archive, https://www.timeseriesclassification.com",
        train_size=len(train),
        test_size=len(test),
    )
    parts = (TensorDataset((x - mean) / std, y.long()) for x, y in ((train, train_labels), (test, test_labels)))
    return Splits(next(parts), next(parts), facts)


def _synthetic_motion(size: int, randomness: torch.Generator) -> Batch:
    values = torch.randn(size, *MOTION_SHAPE, generator=randomness)
    return values, torch.randint(0, len(MOTION_CLASSES), (size,), generator=randomness)


MOTION_SOURCES = (
    Source("basic-motions", "real-full", _load_motion),
    synthetic.source(_synthetic_motion),
)
