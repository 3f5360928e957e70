"""Trainings of models from other people's libraries, chosen without a look at the rules that predict their memory.

timm, torchvision, transformers, diffusers, torch_geometric, segmentation_models_pytorch, peft and torch itself, with
random weights; batch and optimizer varied. The libraries are imported as a model is built: none is a dependency here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_WORDS, _CLASSES = 4000, 10


def _images(side: int, channels: int = 3, classes: int = _CLASSES) -> Callable[[int], Any]:
    return lambda n: (torch.rand(n, channels, side, side), torch.randint(classes, (n,)))


def timm(name: str, side: int, **options: Any) -> Any:
    import timm

    return timm.create_model(name, num_classes=_CLASSES, **options), _images(side), nn.CrossEntropyLoss()


def torchvision(name: str, side: int, **options: Any) -> Any:
    from torchvision import models

    model = models.get_model(name, weights=None, num_classes=_CLASSES, **options)
    return model, _images(side), nn.CrossEntropyLoss()


def video(name: str, frames: int, side: int) -> Any:
    from torchvision import models

    model = models.get_model(name, weights=None, num_classes=_CLASSES)
    return (
        model,
        lambda n: (torch.rand(n, 3, frames, side, side), torch.randint(_CLASSES, (n,))),
        nn.CrossEntropyLoss(),
    )


def _of_pixels(outputs: Any, targets: Tensor) -> Tensor:
    logits = outputs["out"] if isinstance(outputs, dict) else outputs
    return functional.cross_entropy(logits, targets)


def _masks(side: int, classes: int) -> Callable[[int], Any]:
    return lambda n: (torch.rand(n, 3, side, side), torch.randint(classes, (n, side, side)))


def torchvision_masks(name: str, side: int) -> Any:
    from torchvision import models

    model = models.get_model(name, weights=None, weights_backbone=None, num_classes=5)
    return model, _masks(side, 5), _of_pixels


def segmentation(name: str, encoder: str, side: int) -> Any:
    import segmentation_models_pytorch as smp

    model = getattr(smp, name)(encoder, encoder_weights=None, classes=4)
    return model, _masks(side, 4), _of_pixels


def detector(side: int) -> Any:
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)

    def batch(samples: int) -> Any:
        box = torch.tensor([[20.0, 20.0, 90.0, 120.0]])
        images = [torch.rand(3, side, side) for _ in range(samples)]
        return images, [{"boxes": box.clone(), "labels": torch.tensor([1])} for _ in images]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return torch.stack(list(model(*batch).values())).sum()

    return model, batch, loss


def _tokens(words: int, length: int) -> Callable[[int], dict[str, Tensor]]:
    def batch(samples: int) -> dict[str, Tensor]:
        tokens = torch.randint(5, words, (samples, length))
        return {"input_ids": tokens, "labels": tokens}

    return batch


def _sentences(words: int, length: int) -> Callable[[int], dict[str, Tensor]]:
    def batch(samples: int) -> dict[str, Tensor]:
        mask = torch.ones(samples, length, dtype=torch.long)
        mask[:, length * 3 // 4 :] = 0
        tokens = torch.randint(5, words, (samples, length))
        return {"input_ids": tokens, "attention_mask": mask, "labels": torch.randint(2, (samples,))}

    return batch


def language(kind: str, length: int, **config: Any) -> Any:
    import transformers

    settings = getattr(transformers, f"{kind}Config")(vocab_size=_WORDS, **config)
    settings.use_cache = False
    return getattr(transformers, f"{kind}ForCausalLM")(settings), _tokens(_WORDS, length), None


def decoder(kind: str, length: int, **config: Any) -> Any:
    sizes = {
        "hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "intermediate_size": 512, "max_position_embeddings": 512,
    }  # fmt: skip
    return language(kind, length, **{**sizes, **config})


def classifier(kind: str, length: int, **config: Any) -> Any:
    import transformers

    sizes = {"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 640}
    settings = getattr(transformers, f"{kind}Config")(vocab_size=_WORDS, **{**sizes, **config})
    return getattr(transformers, f"{kind}ForSequenceClassification")(settings), _sentences(_WORDS, length), None


def translator(kind: str, length: int, **config: Any) -> Any:
    import transformers

    settings = getattr(transformers, f"{kind}Config")(vocab_size=_WORDS, **config)
    settings.use_cache, settings.decoder_start_token_id = False, 0
    return getattr(transformers, f"{kind}ForConditionalGeneration")(settings), _tokens(_WORDS, length), None


def whisper() -> Any:
    import transformers

    settings = transformers.WhisperConfig(
        vocab_size=_WORDS, d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=384, decoder_ffn_dim=384, num_mel_bins=40, max_source_positions=200,
        max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    settings.use_cache = False

    def batch(samples: int) -> dict[str, Tensor]:
        return {"input_features": torch.rand(samples, 40, 400), "labels": torch.randint(5, _WORDS, (samples, 48))}

    return transformers.WhisperForConditionalGeneration(settings), batch, None


def speech() -> Any:
    import transformers

    settings = transformers.Wav2Vec2Config(
        vocab_size=32, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=384,
        conv_dim=(64,) * 7, num_conv_pos_embeddings=32, num_conv_pos_embedding_groups=8, mask_time_prob=0.0,
        layerdrop=0.0, ctc_zero_infinity=True,
    )  # fmt: skip

    def batch(samples: int) -> dict[str, Tensor]:
        return {"input_values": torch.rand(samples, 16000), "labels": torch.randint(1, 32, (samples, 12))}

    return transformers.Wav2Vec2ForCTC(settings), batch, None


def picture_classifier(kind: str, side: int, **config: Any) -> Any:
    import transformers

    settings = getattr(transformers, f"{kind}Config")(**config)
    settings.num_labels = _CLASSES

    def batch(samples: int) -> dict[str, Tensor]:
        return {"pixel_values": torch.rand(samples, 3, side, side), "labels": torch.randint(_CLASSES, (samples,))}

    return getattr(transformers, f"{kind}ForImageClassification")(settings), batch, None


def clip() -> Any:
    import transformers

    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 384}
    text = {**sizes, "vocab_size": _WORDS, "max_position_embeddings": 32, "eos_token_id": 2}
    vision = {**sizes, "image_size": 64, "patch_size": 8}
    settings = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=96)

    def batch(samples: int) -> dict[str, Any]:
        tokens = torch.randint(5, _WORDS, (samples, 32))
        return {"input_ids": tokens, "pixel_values": torch.rand(samples, 3, 64, 64), "return_loss": True}

    return transformers.CLIPModel(settings), batch, None


def lora() -> Any:
    import peft

    model, batch, loss = decoder("Llama", 96, num_hidden_layers=4)
    chosen = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, chosen), batch, loss


def _denoiser(model: nn.Module, shape: tuple[int, ...], **beside: Any) -> Any:
    def batch(samples: int) -> dict[str, Any]:
        noisy = {"noisy": torch.rand(samples, *shape), "step": torch.randint(1000, (samples,))}
        return {**noisy, **{name: make(samples) for name, make in beside.items()}}

    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        named = {name: batch[name] for name in beside}
        outputs = model(batch["noisy"], timestep=batch["step"], **named).sample
        return functional.mse_loss(outputs[:, : shape[0]], batch["noisy"])

    return model, batch, loss


def unet_2d() -> Any:
    from diffusers import UNet2DModel

    blocks = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    return _denoiser(
        UNet2DModel(32, 3, 3, block_out_channels=(32, 64), down_block_types=blocks[0], up_block_types=blocks[1]),
        (3, 32, 32),
    )


def unet_text() -> Any:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=64, attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    return _denoiser(model, (4, 16, 16), encoder_hidden_states=lambda n: torch.rand(n, 20, 64))


def dit() -> Any:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=32, in_channels=4, num_layers=3, sample_size=16, patch_size=2,
        num_embeds_ada_norm=1000,
    )  # fmt: skip
    return _denoiser(model, (4, 16, 16), class_labels=lambda n: torch.randint(1000, (n,)))


def autoencoder() -> Any:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, sample_size=48,
    )  # fmt: skip

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return functional.mse_loss(model(batch).sample, batch)

    return model, lambda n: torch.rand(n, 3, 48, 48), loss


def graphs(layer: str, width: int, nodes: int = 400, edges: int = 2400, layers: int = 3, **options: Any) -> Any:
    from torch_geometric.nn import models

    model = getattr(models, layer)(32, width, layers, _CLASSES, **options)

    def batch(samples: int) -> tuple[Tensor, Tensor, Tensor]:
        total = samples * nodes
        links = torch.randint(total, (2, samples * edges))
        return torch.rand(total, 32), links, torch.randint(_CLASSES, (total,))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0], batch[1]), batch[2])

    return model, batch, loss


class _PooledGraphs(nn.Module):
    """Graph transformers and a mean over each graph."""

    def __init__(self) -> None:
        from torch_geometric import nn as geometric

        super().__init__()
        self.first = geometric.TransformerConv(32, 32, heads=4)
        self.second = geometric.GINEConv(nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64)), edge_dim=8)
        self.pool, self.out = geometric.global_mean_pool, nn.Linear(64, _CLASSES)

    def forward(self, nodes: Tensor, links: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        hidden = self.first(nodes, links).relu()
        hidden = self.second(hidden, links, edges).relu()
        return torch.as_tensor(self.out(self.pool(hidden, graph, int(graph.shape[0]) // 50)))


def pooled_graphs() -> Any:
    def batch(samples: int) -> Any:
        total = samples * 50
        links = torch.randint(total, (2, samples * 200))
        graph = torch.arange(samples).repeat_interleave(50)
        return torch.rand(total, 32), links, torch.rand(samples * 200, 8), graph, torch.randint(_CLASSES, (samples,))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(*batch[:4]), batch[4])

    return _PooledGraphs(), batch, loss


class _Recurrent(nn.Module):
    """Words to a recurrent network to a class of its last output."""

    def __init__(self, net: nn.Module, width: int, packed: bool = False) -> None:
        super().__init__()
        self.words, self.net, self.out, self.packed = nn.Embedding(_WORDS, 96), net, nn.Linear(width, _CLASSES), packed

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens)
        if self.packed:
            lengths = torch.arange(tokens.shape[0]) % 40 + tokens.shape[1] - 40
            hidden = nn.utils.rnn.pack_padded_sequence(hidden, lengths, batch_first=True, enforce_sorted=False)
            hidden, _ = nn.utils.rnn.pad_packed_sequence(self.net(hidden)[0], batch_first=True)
        else:
            hidden = self.net(hidden)[0]
        return torch.as_tensor(self.out(hidden[:, -1]))


class Cells(nn.Module):
    """A loop over the cells of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.width = nn.LSTMCell(96, 160), 160

    def forward(self, inputs: Tensor) -> tuple[Tensor, None]:
        h = c = inputs.new_zeros(inputs.shape[0], self.width)
        outputs = []
        for moment in inputs.unbind(1):
            h, c = self.cell(moment, (h, c))
            outputs.append(h)
        return torch.stack(outputs, 1), None


def recurrent(make: Callable[[], nn.Module], width: int, length: int, packed: bool = False) -> Any:
    model = _Recurrent(make(), width, packed)
    return (
        model,
        lambda n: (torch.randint(_WORDS, (n, length)), torch.randint(_CLASSES, (n,))),
        nn.CrossEntropyLoss(),
    )


class _ConvLstm(nn.Module):
    """A convolutional LSTM over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.out = nn.Conv2d(1 + 24, 4 * 24, 3, padding=1), nn.Conv2d(24, 1, 1)

    def forward(self, frames: Tensor) -> Tensor:
        h = c = frames.new_zeros(frames.shape[0], 24, *frames.shape[-2:])
        for frame in frames.unbind(1):
            i, f, o, g = torch.as_tensor(self.gates(torch.cat((frame, h), 1))).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return torch.as_tensor(self.out(h))


def conv_lstm() -> Any:
    return _ConvLstm(), lambda n: (torch.rand(n, 8, 1, 32, 32), torch.rand(n, 1, 32, 32)), nn.MSELoss()


class _Volume(nn.Module):
    """A U-Net of volumes with instance norm, transposed convolutions and deep strides."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, 12, 3, padding=1), nn.InstanceNorm3d(12, affine=True), nn.LeakyReLU())
        self.down = nn.Sequential(nn.Conv3d(12, 24, 3, 2, 1), nn.InstanceNorm3d(24, affine=True), nn.LeakyReLU())
        self.up, self.mask = nn.ConvTranspose3d(24, 12, 2, 2), nn.Conv3d(24, 3, 1)

    def forward(self, volume: Tensor) -> Tensor:
        first = self.first(volume)
        return torch.as_tensor(self.mask(torch.cat((self.up(self.down(first)), first), 1)))


def volume() -> Any:
    def batch(samples: int) -> tuple[Tensor, Tensor]:
        return torch.rand(samples, 1, 24, 24, 24), torch.randint(3, (samples, 24, 24, 24))

    return _Volume(), batch, nn.CrossEntropyLoss()


class _Switch(nn.Module):
    """A layer of experts, each word to one of them, by a loop and by indices that depend on the numbers."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.words, self.route, self.out = nn.Embedding(_WORDS, width), nn.Linear(width, experts), nn.Linear(width, 50)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)) for _ in range(experts)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.as_tensor(self.words(tokens)).flatten(0, 1)
        best, which = torch.as_tensor(self.route(x)).softmax(-1).max(-1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = (which == number).nonzero().flatten()
            mixed = mixed.index_add(0, chosen, expert(x[chosen]) * best[chosen, None])
        return torch.as_tensor(self.out(mixed))


def switch() -> Any:
    def batch(samples: int) -> tuple[Tensor, Tensor]:
        return torch.randint(_WORDS, (samples, 64)), torch.randint(50, (samples * 64,))

    return _Switch(96, 4), batch, nn.CrossEntropyLoss()


class _StateSpace(nn.Module):
    """Diagonal state-space layers as long convolutions by FFT."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(width, states))
        self.turn = nn.Parameter(torch.rand(width, states))
        self.mix = nn.Parameter(torch.rand(width, states, 2))
        self.start, self.out = nn.Linear(1, width), nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.as_tensor(self.start(x)).transpose(1, 2)
        length = x.shape[-1]
        poles = torch.complex(-self.decay.exp(), self.turn)
        powers = (poles[..., None] * torch.arange(length)).exp()
        kernel = 2 * torch.einsum("hs,hsl->hl", torch.view_as_complex(self.mix), powers).real
        y = torch.fft.irfft(torch.fft.rfft(x, 2 * length) * torch.fft.rfft(kernel, 2 * length), 2 * length)
        return torch.as_tensor(self.out(functional.gelu(y[..., :length] + x).mean(-1)))


def state_space() -> Any:
    return _StateSpace(48, 16), lambda n: (torch.rand(n, 256, 1), torch.randint(_CLASSES, (n,))), nn.CrossEntropyLoss()


def bag(sparse: bool) -> Any:
    bag = nn.EmbeddingBag(40_000, 64, mode="sum", sparse=sparse)
    model = bag if sparse else nn.Sequential(bag, nn.ReLU(), nn.Linear(64, _CLASSES))
    return (
        model,
        lambda n: (torch.randint(40_000, (n, 20)), torch.randint(_CLASSES, (n,))),
        nn.CrossEntropyLoss(),
    )


def autocast(name: str, side: int) -> Any:
    model, batch, _ = timm(name, side)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.cross_entropy(model(batch[0]), batch[1])

    return model, batch, loss


def channels_last(name: str, side: int) -> Any:
    model, batch, loss = timm(name, side)
    inner = torch.channels_last
    return model.to(memory_format=inner), lambda n: (batch(n)[0].to(memory_format=inner), batch(n)[1]), loss
