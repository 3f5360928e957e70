"""Parameters and multiply-adds of every workload, against figures counted apart from this code; 1 MAC = 2 FLOPs.

The figures were counted with model definitions of their own; where a library or a paper prints one, it agrees.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch

from stepscope import workloads
from stepscope.api.workloads import counting_digest
from stepscope.record.dry.flops import FlopCount, count_flops
from stepscope.workloads import FILE, files_digest

# name: parameters, forward and training multiply-adds of a sample in millions.
FIGURES = {
    "alexnet-224": (61_100_840, 714.2, 2072.3),
    "alexnet-grouped-227": (60_965_224, 724.4, 2067.8),
    "autoencoder-640": (267_928, 0.264, 0.71),
    "bert-base-128": (108_893_186, 11_174, 33_521),
    "bert-base-384": (108_893_186, 35_333, 106_000),
    "bert-mini-128": (11_105_282, 436, 1_309),
    "bert-small-128": (28_502_018, 1_678, 5_034),
    "bert-tiny-128": (4_369_666, 58.8, 176.3),
    "char-gpt-256": (10_745_088, 3_026, 9_079),
    "char-gpt-64": (804_096, 55.06, 165.2),
    "char-lstm-80": (819_920, 63.6, 190),
    "char-lstm-all-80": (815_945, 64.9, 194),
    "dcgan-32": (1_068_928 + 663_296, 70.7, 210),
    "dcgan-64": (3_576_704 + 2_765_568, 416.1, 1_241),
    "densenet-bc100-12-c32": (769_162, 287.9, 863),
    "densenet100-12-c32": (6_979_642, 1_769.5, 5_308),
    "densenet40-12-c32": (1_019_722, 264.8, 794),
    "densenet40-4-c32": (137_002, 37.88, 113.2),
    "distilbert-128": (66_364_418, 5_587, 16_761),
    "dqn-2013-84": (677_172, 2.97 * 2, 7.26 + 2.97),
    "dqn-nature-84": (1_686_180, 9.34 * 2, 24.8 + 9.34),
    "ds-cnn-kws": (23_756, 2.66, 7.65),
    "efficientnet-b0-224": (5_288_548, 385.8, 1_147),
    "inception-v1-224": (7_005_832, 1_582.7, 4_630),
    "inception-v1-c32": (5_871_914, 1_447, 4_336),
    "inception-v1-narrow-c32": (5_610_154, 1_498.4 / 49, 89.3),
    "lenet": (21_840, 0.48, 1.3),
    "mobilenet-v1-025-96": (213_586, 7.5, 22.0),
    "mobilenet-v1-224": (4_231_976, 568.7, 1_695),
    "mobilenet-v1-c32": (3_217_226, 46.4, 138),
    "mobilenet-v2-035-224": (1_677_128, 59.3, 172.4),
    "mobilenet-v2-224": (3_504_872, 300.8, 891.5),
    "mobilenet-v2-c32": (2_236_682, 88.0, 263),
    "mobilenet-v3-large-224": (5_483_032, 216.6, 644.3),
    "mobilenet-v3-small-224": (2_542_856, 56.5, 164.1),
    "next-word-lstm-20": (4_053_428, 61.6, 183),
    "resnet101-224": (44_549_160, 7_801, 23_286),
    "resnet101-c32": (42_512_970, 2_510, 7_528),
    "resnet152-224": (60_192_808, 11_514, 34_423),
    "resnet152-c32": (58_156_618, 3_722, 11_165),
    "resnet18-224": (11_188_311, 1_814, 5_323),
    "resnet18-c32": (11_173_962, 555.4, 1_664),
    "resnet50-224": (25_557_032, 4_089, 12_150),
    "resnet50-c32": (23_520_842, 1_297.8, 3_892),
    "resnet8-c32": (78_186, 12.5, 37.06),
    "seq2seq-en-vi-50": (10_502_145 + 512 * 17_191 + 1024 * 7_709, 724, 2_168),
    "smollm2-135m-full-128": (134_515_008, 17_780, 53_339),
    "squeezenet-224": (1_248_424, 818.9, 2_289),
    "squeezenet-c32": (729_034, 52.5, 155),
    "tinybert4-128": (14_253_218, 624, 1_871),
    "vgg16-224": (138_357_544, 15_470, 46_324),
    "vgg16-c32": (14_728_266, 313.2, 938),
    "vgg19-224": (143_667_240, 19_632, 58_810),
    "vgg19-c32": (20_040_522, 398.1, 1_193),
    "vit-tiny-224": (5_717_416, 1_254, 3_732),
    "vit-tiny-c32": (5_362_762, 365, 1_095),
    "xception-299": (22_855_952, 8_357, 25_053),
    "xception-c32": (20_827_442, 88.2, 264),
}
# Ours alone: nothing to compare with, so what was counted when they were written, against a slip.
OWN = {
    "activity-cnn-6x100": (64_388, 6.34, 18.8),
    "activity-gru-6x100": (151_812, 14.98, 44.6),
    "alexnet-c32": (2_472_266, 14.96, 43.4),
    "diffusion-unet32-c32": (613_891, 120.9, 361.7),
    "diffusion-unet64-c32": (2_255_619, 478.7, 1_434),
    "smollm2-135m-lora-128": (134_515_008 + 460_800, 17_839, 36_221),
}
ALL = {**FIGURES, **OWN}
ANEW = "a file of workloads/ or the counting has changed: python -m benchmarks.count_workloads writes the counts anew"


@functools.cache
def counted(name: str) -> tuple[int, int, FlopCount]:
    """Parameters, those that are trained, and the FLOPs of a workload, without memory for its weights."""
    workload = workloads.find(name)
    with torch.device("meta"):
        model = workload.build()
        flops = count_flops(model, workload.loss, workload.example(2))
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad), flops


def test_every_workload_has_its_figures() -> None:
    assert set(workloads.names()) == set(ALL)


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_workload_has_the_size_that_the_literature_gives(name: str) -> None:
    parameters, forward_macs, training_macs = ALL[name]
    found, _, flops = counted(name)
    assert found == parameters
    assert flops.reason is None
    assert flops.total_forward is not None
    assert flops.total_backward is not None
    tolerance = 0.012 if forward_macs < 1 else 0.003
    assert flops.total_forward / 2e6 == pytest.approx(forward_macs, rel=tolerance)
    assert (flops.total_forward + flops.total_backward) / 2e6 == pytest.approx(training_macs, rel=tolerance)
    row = json.loads(FILE.read_text(encoding="utf-8"))["rows"][name]
    stated = (row["parameters"], row["flops_forward"], row["flops_training"])
    assert stated == (found, flops.total_forward, flops.total_forward + flops.total_backward), ANEW


def test_the_counts_that_the_package_brings_are_those_of_these_files() -> None:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    assert (kept["workloads"], kept["counting"]) == (files_digest(), counting_digest()), ANEW
    assert set(kept["rows"]) == set(ALL), ANEW


@pytest.mark.parametrize(
    ("name", "classes", "features", "parameters"),
    [  # networks with 10 classes, as the paper of 2019 trained them, from those with 1000
        ("vgg16-224", 10, 4096, 134_301_514),
        ("vgg19-224", 10, 4096, 139_611_210),
        ("alexnet-224", 10, 4096, 57_044_810),
        ("squeezenet-224", 10, 512, 740_554),
        ("inception-v1-224", 10, 1024, 5_991_082),
        ("resnet18-224", 1000, 512, 11_689_512),
    ],
)
def test_with_another_number_of_classes_the_parameters_are_those_of_the_table(
    name: str, classes: int, features: int, parameters: int
) -> None:
    now = 23 if name == "resnet18-224" else 1000
    assert counted(name)[0] + (classes - now) * (features + 1) == parameters


def test_adapters_are_all_that_is_trained_of_a_frozen_model() -> None:
    assert counted("smollm2-135m-lora-128")[1] == 460_800
    assert counted("smollm2-135m-full-128")[1] == 134_515_008


def test_the_judge_of_q_learning_is_no_parameter() -> None:
    found, trained, _ = counted("dqn-nature-84")
    assert found == trained


def test_four_frozen_parts_of_six_are_what_adapters_save() -> None:
    full, adapted = (counted(f"smollm2-135m-{way}-128")[2] for way in ("full", "lora"))
    assert full.total_backward is not None
    assert adapted.total_backward is not None
    assert adapted.total_backward / full.total_backward == pytest.approx(0.5, abs=0.03)


def test_the_page_of_the_workloads_has_the_figures_of_each() -> None:
    page = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    rows = {cells[1].strip(" `"): cells for line in page.splitlines() if len(cells := line.split("|")) == 10}
    for name, (parameters, _, _) in ALL.items():
        assert rows[name][6].strip() == f"{parameters:,}"
        assert rows[name][3].strip() == ", ".join(workloads.find(name).tiers)
