"""Data in each program's own format, made and not fetched: python -m benchmarks.scripts.data KIND TARGET.

All of it is random with structure enough to train on, the same on each call. It runs under the programs' own Python:
a tokenizer or an image needs packages that Stepscope does not.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TRAINED, TESTED = 1920, 512  # images
_WORDS = 1000
_NODES, _TRAITS, _CITES = 1800, 120, 4000
_LETTERS = "abcdefghijklmnopqrstuvwxyz \n"


def _images(count: int, size: int, colours: int, seed: int) -> tuple[Any, Any]:
    """(images of bytes, labels of 0 to 9): a bright bar whose place is the label, in noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = rng.integers(0, 64, (count, size, size, colours))
    bar = max(1, size // 10)
    for image, label in zip(images, labels, strict=True):
        image[label * bar : (label + 1) * bar, size // 6 : -size // 6] += 160
    return images.astype(np.uint8), labels.astype(np.uint8)


def mnist(target: Path, trained: int = TRAINED) -> None:
    """The four idx files of MNIST, where torchvision looks for them."""
    raw = target / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count, seed in (("train", trained, 0), ("t10k", TESTED, 1)):
        images, labels = _images(count, 28, 1, seed)
        head = b"".join(number.to_bytes(4, "big") for number in (0x803, count, 28, 28))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = b"".join(number.to_bytes(4, "big") for number in (0x801, count))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def mnist_whole(target: Path) -> None:
    """As many images to train on as MNIST has, for a program that splits them into 55,000 and 5,000."""
    mnist(target, 60_000)


def cifar(target: Path) -> None:
    """The pickled batches of CIFAR-10: 5 of 4 images to train on, 1 of 20."""
    folder = target / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"class{label}" for label in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    for at, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        images, labels = _images(20 if name == "test_batch" else 4, 32, 3, at)
        rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": [int(one) for one in labels]}, protocol=2))


def _words(count: int, seed: int) -> list[str]:
    """Words by Zipf's law, each a little likelier after its neighbour."""
    rng = np.random.default_rng(seed)
    drawn = np.minimum(rng.zipf(1.3, count), _WORDS) - 1
    drawn[1::2] = (drawn[::2][: len(drawn[1::2])] * 7 + 3) % _WORDS
    return [f"w{number}" for number in drawn]


def wikitext(target: Path) -> None:
    """Three text files of words: 30 batches of 20 columns and 35 rows to train on."""
    target.mkdir(parents=True)
    for name, count, seed in (("train", 20 * (30 * 35 + 1), 0), ("valid", 10 * 71, 1), ("test", 10 * 71, 2)):
        words = _words(count, seed)
        lines = [" ".join(words[at : at + 24]) for at in range(0, len(words), 25)]  # and <eos> at each line's end
        (target / f"{name}.txt").write_text("\n".join(lines) + "\n")


def _text(count: int) -> str:
    return " ".join(_words(count, 3))


def characters(target: Path) -> None:
    """One text file, as chargpt reads it; what it is asked to go on from has to be in its alphabet."""
    target.write_text(_LETTERS + "O God, O God!\n" + _text(4000))


def shakespeare_char(target: Path) -> None:
    """Token bins of 16 bits with the alphabet beside them, as nanoGPT's prepare.py writes them."""
    target.mkdir(parents=True)
    text = _text(8000)
    alphabet = sorted(set(text))
    to_number = {letter: number for number, letter in enumerate(alphabet)}
    numbers = np.array([to_number[letter] for letter in text], dtype=np.uint16)
    cut = len(numbers) * 9 // 10
    numbers[:cut].tofile(target / "train.bin")
    numbers[cut:].tofile(target / "val.bin")
    meta = {"vocab_size": len(alphabet), "itos": dict(enumerate(alphabet)), "stoi": to_number}
    (target / "meta.pkl").write_bytes(pickle.dumps(meta))


def sine_wave(target: Path) -> None:
    """What generate_sine_wave.py writes, smaller: 33 waves of 100 samples, 30 of them to train on."""
    import torch

    rng = np.random.default_rng(2)
    steps = np.arange(100) + rng.integers(-80, 80, 33).reshape(33, 1)
    torch.save(np.sin(steps / 20.0), target)


def cora(target: Path) -> None:
    """Nodes with traits and a label, and who cites whom."""
    target.mkdir(parents=True)
    rng = np.random.default_rng(4)
    traits = (rng.random((_NODES, _TRAITS)) < 0.05).astype(int)
    traits[:, 0] = 1
    labels = rng.integers(0, 7, _NODES)
    lines = ["\t".join([str(1000 + at), *map(str, traits[at]), f"topic{labels[at]}"]) for at in range(_NODES)]
    (target / "cora.content").write_text("\n".join(lines) + "\n")
    edges = sorted({(int(a), int(b)) for a, b in rng.integers(0, _NODES, (_CITES, 2)) if a != b})
    (target / "cora.cites").write_text("".join(f"{1000 + a}\t{1000 + b}\n" for a, b in edges))


def _picture(at: int, size: int) -> Any:
    from PIL import Image

    images, _ = _images(1, size, 3, at)
    return Image.fromarray(images[0])


def bsds(target: Path) -> None:
    """Photographs in two folders: 60 to train on, 8 to test with."""
    for part, count in (("train", 60), ("test", 8)):
        folder = target / "BSDS300" / "images" / part
        folder.mkdir(parents=True)
        for at in range(count):
            _picture(at, 264).save(folder / f"{at:03}.jpg", quality=90)


def image_folders(target: Path) -> None:
    """A folder a class, in train and val, as ImageFolder reads them: 10 classes of 32 and of 8 images."""
    for part, count in (("train", 32), ("val", 8)):
        for label in range(10):
            folder = target / part / f"class{label}"
            folder.mkdir(parents=True)
            for at in range(count):
                _picture(1000 * label + at + (500 if part == "val" else 0), 72).save(folder / f"{at:03}.png")


def flat_images(target: Path) -> None:
    """40 images in one folder."""
    target.mkdir(parents=True)
    for at in range(40):
        _picture(at, 40).save(target / f"{at:03}.png")


def pets(target: Path) -> None:
    """Photographs named after their class, as those of the Oxford pets are: class_12.jpg."""
    target.mkdir(parents=True)
    for at in range(40):
        _picture(at, 240).save(target / f"{('cat', 'dog', 'owl')[at % 3]}_{at}.jpg", quality=90)


def unet_config(target: Path) -> None:
    """A small UNet2DModel as diffusers writes its configuration."""
    target.mkdir(parents=True)
    config = {
        "_class_name": "UNet2DModel", "sample_size": 32, "in_channels": 3, "out_channels": 3, "layers_per_block": 1,
        "block_out_channels": [32, 64], "norm_num_groups": 8, "attention_head_dim": 8,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    }  # fmt: skip
    (target / "config.json").write_text(json.dumps(config))


def llama(target: Path) -> None:
    """A random Llama of two layers with tied embeddings, and a tokenizer of words with a chat template."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<unk>", "<pad>", "<s>", "</s>", "user", "assistant", ":"]
    vocabulary = {word: at for at, word in enumerate([*special, *(f"w{number}" for number in range(_WORDS))])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] + ' : ' + message['content'] + ' </s> ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant : ' }}{% endif %}"
    )
    tokenizer.save_pretrained(target)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=2, eos_token_id=3,
        pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(target)


def conversations(target: Path) -> None:
    """Chats as JSON lines, train and test, as trl reads them: a prompt, an answer, and for preferences a worse one."""
    target.mkdir(parents=True)
    for name, count, seed in (("train", 240, 5), ("test", 16, 6)):
        words = _words(count * 40, seed)
        lines = []
        for at in range(count):
            ours = words[40 * at : 40 * at + 40]
            asked, said = {"role": "user", "content": " ".join(ours[:10])}, " ".join(ours[10:30])
            worse = [{"role": "assistant", "content": " ".join(ours[30:])}]
            lines.append(
                {"prompt": [asked], "chosen": [{"role": "assistant", "content": said}], "rejected": worse}
                if target.name == "preferences"
                else {"messages": [asked, {"role": "assistant", "content": said}]}
            )
        (target / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def resnet_cache(target: Path) -> None:
    """A Hugging Face cache that holds random weights under the name of timm's resnet50d."""
    import timm
    import torch
    from safetensors.torch import save_file

    name = timm.create_model("resnet50d").default_cfg["tag"]
    folder = target / "hub" / f"models--timm--resnet50d.{name}"
    revision = "0" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(revision)
    torch.manual_seed(0)
    kept = folder / "snapshots" / revision
    kept.mkdir(parents=True)
    save_file(timm.create_model("resnet50d").state_dict(), kept / "model.safetensors")
    (kept / "config.json").write_text(json.dumps({"architecture": "resnet50d", "num_classes": 1000}))


KINDS: dict[str, Callable[[Path], None]] = {
    made.__name__: made
    for made in (
        mnist, mnist_whole, cifar, wikitext, characters, shakespeare_char, sine_wave, cora, bsds, image_folders,
        flat_images, pets, unet_config, llama, conversations, resnet_cache,
    )
}  # fmt: skip
KINDS["preferences"] = conversations


if __name__ == "__main__":
    kind, place = sys.argv[1], Path(sys.argv[2])
    os.environ["HF_HUB_OFFLINE"] = "1"
    place.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](place)
