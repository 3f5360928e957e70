"""A transformer with activation checkpoints, saved every third step. A script for `benchmarks.fit_limit`."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    """Attention and two layers: [B, T, width] to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + torch.as_tensor(self.layers(x))


class Transformer(nn.Module):
    """Six blocks, each run again in backward: [B, T] to [B, T, 1000]."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, width), nn.Linear(width, 1000)
        self.blocks = nn.ModuleList(Block(width) for _ in range(6))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return torch.as_tensor(self.head(x))


model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    tokens = torch.randint(0, 1000, (24, 128))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if step % 3 == 2:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "kept.pt")
    print(step, loss.item())
