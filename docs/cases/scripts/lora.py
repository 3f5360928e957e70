"""Fine-tuning a transformer: all its weights with AdamW, or with `--lora` two thin matrices beside each of its own."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lora", action="store_true")
parser.add_argument("--steps", type=int, default=30)
options = parser.parse_args()


class Lora(nn.Module):
    def __init__(self, whole: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.whole = whole.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(whole.in_features, rank, False), nn.Linear(rank, whole.out_features, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.whole(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_norm, self.mlp_in, self.mlp_out = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part.unflatten(2, (8, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, 2)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp_out(nn.functional.gelu(self.mlp_in(self.mlp_norm(x))))


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(4096, 512), *(Block(512) for _ in range(6)), nn.LayerNorm(512), nn.Linear(512, 4096))
if options.lora:
    model.requires_grad_(requires_grad=False)
    for block in model:
        if isinstance(block, Block):
            for name in ("qkv", "out", "mlp_in", "mlp_out"):
                setattr(block, name, Lora(getattr(block, name)))
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
tokens = torch.randint(4096, (1, 65))
for _ in range(options.steps):
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
