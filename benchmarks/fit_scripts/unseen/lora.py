"""LoRA by hand on a frozen decoder; sdpa; only adapters saved."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class LoRALinear(nn.Module):
    def __init__(self, base, r=8, alpha=16):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) * 0.01)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.s = alpha / r

    def forward(self, x):
        return self.base(x) + self.s * (x @ self.a.T @ self.b.T)


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.up, self.gate, self.down = (
            nn.Linear(d, 3 * d, bias=False),
            nn.Linear(d, 3 * d, bias=False),
            nn.Linear(3 * d, d, bias=False),
        )
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)

    def forward(self, x):
        b, t, d = x.shape
        z = self.n1(x)
        q, k, v = (f(z).view(b, t, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        z = self.n2(x)
        return x + self.down(F.silu(self.gate(z)) * self.up(z))


class Tiny(nn.Module):
    def __init__(self, v=16000, d=512, n=6, h=8):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.layers = nn.ModuleList(Layer(d, h) for _ in range(n))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.emb(x)
        for l in self.layers:
            h = l(h)
        return self.head(self.norm(h))


model = Tiny().requires_grad_(False)
for layer in model.layers:
    layer.q, layer.v = LoRALinear(layer.q), LoRALinear(layer.v)
train = [p for p in model.parameters() if p.requires_grad]
print(sum(p.numel() for p in train), "trainable")
opt = torch.optim.AdamW(train, 2e-4)
for step in range(5):
    ids = torch.randint(0, 16000, (4, 129))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(train, 1.0)
    opt.step()
    opt.zero_grad()
torch.save({k: v for k, v in model.state_dict().items() if k.endswith((".a", ".b"))}, "adapter.pt")
