"""An Adafactor-like optimizer written by hand: factored second moments."""

import torch
from torch import nn


class Factored(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, beta=0.999, eps=1e-30):
        super().__init__(params, dict(lr=lr, beta=beta, eps=eps))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                sq = p.grad.pow(2).add_(g["eps"])
                if p.dim() >= 2:
                    if not s:
                        s["r"], s["c"] = torch.zeros(p.shape[:-1]), torch.zeros(p.shape[:-2] + p.shape[-1:])
                    s["r"].lerp_(sq.mean(-1), 1 - g["beta"])
                    s["c"].lerp_(sq.mean(-2), 1 - g["beta"])
                    v = (s["r"] / s["r"].mean(-1, keepdim=True)).unsqueeze(-1) * s["c"].unsqueeze(-2)
                else:
                    if not s:
                        s["v"] = torch.zeros_like(p)
                    s["v"].lerp_(sq, 1 - g["beta"])
                    v = s["v"]
                u = p.grad / v.sqrt()
                u /= (u.norm() / u.numel() ** 0.5).clamp_(min=1.0)
                p.add_(u, alpha=-g["lr"])


torch.manual_seed(0)
V = 30000
model = nn.Sequential(
    nn.Embedding(V, 384),
    nn.TransformerEncoder(nn.TransformerEncoderLayer(384, 6, 1024, batch_first=True, norm_first=True), 2),
    nn.Linear(384, V),
)
opt = Factored(model.parameters())
for step in range(5):
    ids = torch.randint(0, V, (8, 64))
    loss = nn.functional.cross_entropy(model(ids).view(-1, V), ids.view(-1))
    model.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
