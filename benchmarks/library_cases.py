"""The models of other people's libraries that memory is predicted of, each with its batch and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks import library_models as build
from stepscope.footprint.jobs import job_of
from stepscope.record.dry import Job

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "momentum fused": partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=True),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamw foreach": partial(torch.optim.AdamW, foreach=True),
    "adamw fused": partial(torch.optim.AdamW, fused=True),
    "amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "rmsprop": partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adafactor": torch.optim.Adafactor,
    "rprop": torch.optim.Rprop,
    "sparse adam": torch.optim.SparseAdam,
}


@dataclass(frozen=True)
class Case:
    """A model of a library, the batch and optimizer that train it; `build` returns model, batch maker and loss."""

    library: str
    build: Callable[[], tuple[nn.Module, Callable[[int], Any], Any]]
    batch: int
    optimizer: str

    def job(self) -> Job:
        """Return the training, its weights drawn anew."""
        model, batch, loss = self.build()
        trained = [p for p in model.parameters() if p.requires_grad]
        return job_of(model, OPTIMIZERS[self.optimizer](trained), batch, *(() if loss is None else (loss,)))


def _case(library: str, batch: int, optimizer: str, build: Callable[..., Any], *given: Any, **named: Any) -> Case:
    return Case(library, partial(build, *given, **named), batch, optimizer)


CASES: dict[str, Case] = {
    "convnextv2_atto": _case("timm", 6, "adamw", build.timm, "convnextv2_atto", 96),
    "efficientformerv2_s0": _case("timm", 4, "adamw fused", build.timm, "efficientformerv2_s0", 224),
    "mobilevit_xs": _case("timm", 5, "momentum", build.timm, "mobilevit_xs", 128),
    "levit_128s": _case("timm", 8, "nadam", build.timm, "levit_128s", 224),
    "swin_tiny": _case("timm", 2, "adamw foreach", build.timm, "swin_tiny_patch4_window7_224", 224),
    "mixer_s16": _case("timm", 7, "sgd", build.timm, "mixer_s16_224", 224),
    "poolformer_s12": _case("timm", 3, "rmsprop", build.timm, "poolformer_s12", 128),
    "ghostnet": _case("timm", 16, "momentum fused", build.timm, "ghostnet_100", 96),
    "mobilenetv4_small": _case("timm", 12, "adam", build.timm, "mobilenetv4_conv_small", 96),
    "regnetx_002": _case("timm", 10, "adagrad", build.timm, "regnetx_002", 96),
    "res2net50": _case("timm", 3, "momentum", build.timm, "res2net50_14w_8s", 96),
    "hrnet_w18_small": _case("timm", 2, "sgd", build.timm, "hrnet_w18_small", 96),
    "nf_resnet26": _case("timm", 6, "adadelta", build.timm, "nf_resnet26", 96),
    "eva02_tiny": _case("timm", 4, "radam", build.timm, "eva02_tiny_patch14_224", 224),
    "pvt_v2_b0": _case("timm", 6, "adamw", build.timm, "pvt_v2_b0", 128),
    "fastvit_t8": _case("timm", 3, "adamax", build.timm, "fastvit_t8", 128),
    "repvgg_a0": _case("timm", 9, "amsgrad", build.timm, "repvgg_a0", 64),
    "dla34": _case("timm", 5, "momentum", build.timm, "dla34", 96),
    "edgenext_autocast": _case("timm", 4, "adamw", build.autocast, "edgenext_xx_small", 96),
    "seresnet_autocast": _case("timm", 12, "momentum", build.autocast, "seresnext26d_32x4d", 64),
    "resnet10t_channels_last": _case("timm", 11, "momentum", build.channels_last, "resnet10t", 96),
    "efficientnet_channels_last": _case("timm", 5, "rmsprop", build.channels_last, "efficientnet_lite0", 96),
    "shufflenet_v2": _case("torchvision", 24, "adam", build.torchvision, "shufflenet_v2_x0_5", 96),
    "mnasnet": _case("torchvision", 8, "rmsprop", build.torchvision, "mnasnet0_5", 128),
    "googlenet": _case(
        "torchvision", 6, "momentum", build.torchvision, "googlenet", 96, aux_logits=False, init_weights=False,
    ),
    "densenet121": _case("torchvision", 3, "sgd", build.torchvision, "densenet121", 96),
    "squeezenet1_1": _case("torchvision", 20, "adamw fused", build.torchvision, "squeezenet1_1", 96),
    "alexnet": _case("torchvision", 17, "sgd", build.torchvision, "alexnet", 96),
    "maxvit_t": _case("torchvision", 1, "adamw", build.torchvision, "maxvit_t", 224),
    "lraspp": _case("torchvision", 3, "adam", build.torchvision_masks, "lraspp_mobilenet_v3_large", 128),
    "fcn_resnet50": _case("torchvision", 2, "momentum", build.torchvision_masks, "fcn_resnet50", 64),
    "mc3_18": _case("torchvision", 2, "momentum", build.video, "mc3_18", 8, 48),
    "r2plus1d_18": _case("torchvision", 1, "adam", build.video, "r2plus1d_18", 8, 48),
    "s3d": _case("torchvision", 2, "sgd", build.video, "s3d", 16, 64),
    "ssdlite": _case("torchvision", 2, "momentum", build.detector, 160),
    "unet_resnet18": _case("segmentation", 4, "adam", build.segmentation, "Unet", "resnet18", 96),
    "fpn_mobilenet": _case("segmentation", 5, "adamw", build.segmentation, "FPN", "mobilenet_v2", 96),
    "deeplabv3plus": _case("segmentation", 3, "momentum", build.segmentation, "DeepLabV3Plus", "resnet18", 96),
    "unetplusplus": _case("segmentation", 2, "nadam", build.segmentation, "UnetPlusPlus", "resnet18", 64),
    "manet": _case("segmentation", 2, "rmsprop", build.segmentation, "MAnet", "mobilenet_v2", 64),
    "distilbert": _case(
        "transformers", 8, "adamw", build.classifier, "DistilBert", 96, dim=192, n_layers=3, n_heads=4,
        hidden_dim=640,
    ),
    "albert": _case("transformers", 12, "adafactor", build.classifier, "Albert", 64, embedding_size=64),
    "roberta_masked": _case("transformers", 6, "adam", build.classifier, "Roberta", 100, pad_token_id=1),
    "deberta_v2": _case(
        "transformers", 4, "adamw", build.classifier, "DebertaV2", 64, relative_attention=True,
        pos_att_type=["c2p", "p2c"], position_buckets=32,
    ),
    "electra": _case("transformers", 9, "adagrad", build.classifier, "Electra", 128, embedding_size=96),
    "llama": _case("transformers", 4, "adamw foreach", build.decoder, "Llama", 160),
    "qwen2": _case("transformers", 9, "adafactor", build.decoder, "Qwen2", 64),
    "gemma": _case("transformers", 3, "adamw fused", build.decoder, "Gemma", 128, head_dim=32),
    "mixtral": _case("transformers", 10, "adam", build.decoder, "Mixtral", 96, num_local_experts=4),
    "olmoe": _case("transformers", 5, "sgd", build.decoder, "Olmoe", 128, num_experts=8, num_experts_per_tok=2),
    "mamba": _case(
        "transformers", 3, "adamw", build.language, "Mamba", 64, hidden_size=128, num_hidden_layers=2,
        state_size=8,
    ),
    "bloom": _case("transformers", 6, "momentum", build.language, "Bloom", 128, hidden_size=192, n_layer=3, n_head=6),
    "gpt_neox": _case("transformers", 4, "radam", build.decoder, "GPTNeoX", 128),
    "t5": _case(
        "transformers", 14, "adamw", build.translator, "T5", 96, d_model=192, d_kv=32, d_ff=512, num_layers=2,
        num_heads=6,
    ),
    "bart": _case(
        "transformers", 5, "adam", build.translator, "Bart", 100, d_model=160, encoder_layers=2, decoder_layers=2,
        encoder_ffn_dim=480, decoder_ffn_dim=480, encoder_attention_heads=4, decoder_attention_heads=4,
    ),
    "whisper": _case("transformers", 4, "adamw", build.whisper),
    "wav2vec2": _case("transformers", 6, "adam", build.speech),
    "segformer": _case("transformers", 5, "adamw", build.picture_classifier, "Segformer", 128),
    "convnext_hf": _case(
        "transformers", 4, "momentum", build.picture_classifier, "ConvNextV2", 96, hidden_sizes=[32, 64, 128, 256],
        depths=[1, 1, 3, 1],
    ),
    "clip": _case("transformers", 16, "adam", build.clip),
    "llama_lora": _case("peft", 6, "adamw", build.lora),
    "unet_2d": _case("diffusers", 4, "adamw", build.unet_2d),
    "unet_text": _case("diffusers", 6, "adamw fused", build.unet_text),
    "dit": _case("diffusers", 12, "adam", build.dit),
    "autoencoder_kl": _case("diffusers", 3, "momentum", build.autoencoder),
    "gcn": _case("torch_geometric", 8, "adam", build.graphs, "GCN", 96),
    "gat": _case("torch_geometric", 5, "adamw", build.graphs, "GAT", 64, heads=4),
    "graph_sage": _case("torch_geometric", 12, "rprop", build.graphs, "GraphSAGE", 128),
    "edge_cnn": _case("torch_geometric", 3, "momentum", build.graphs, "EdgeCNN", 64),
    "pooled_graphs": _case("torch_geometric", 20, "nadam", build.pooled_graphs),
    "gru": _case(
        "RNN", 24, "adam", build.recurrent, lambda: nn.GRU(96, 160, 2, batch_first=True, dropout=0.2), 160, 60,
    ),
    "lstm_projected": _case(
        "RNN", 10, "sgd", build.recurrent, lambda: nn.LSTM(96, 192, batch_first=True, proj_size=64), 64, 50,
    ),
    "rnn_relu": _case(
        "RNN", 32, "rmsprop", build.recurrent,
        lambda: nn.RNN(96, 128, 2, nonlinearity="relu", batch_first=True, bidirectional=True), 256, 40,
    ),
    "lstm_packed": _case(
        "RNN", 18, "adam", build.recurrent, lambda: nn.LSTM(96, 128, batch_first=True, bidirectional=True), 256,
        70, packed=True,
    ),
    "lstm_cells": _case("RNN", 40, "adamw", build.recurrent, build.Cells, 160, 60),
    "conv_lstm": _case("RNN", 6, "adam", build.conv_lstm),
    "volume_unet": _case("3-D", 2, "adamw", build.volume),
    "switch": _case("MoE", 16, "adamw", build.switch),
    "state_space": _case("state-space", 8, "adam", build.state_space),
    "bag": _case("torch", 64, "adagrad", build.bag, False),
    "bag_sparse": _case("torch", 64, "sparse adam", build.bag, True),
}  # fmt: skip
