"""Gradual unfreezing: head first, then layer groups from the top."""

import torch
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(6000, 300)
        self.layers = nn.ModuleList([nn.LSTM(300 if i == 0 else 512, 512, batch_first=True) for i in range(3)])
        self.head = nn.Sequential(nn.BatchNorm1d(1024), nn.Linear(1024, 50), nn.ReLU(), nn.Linear(50, 2))

    def forward(self, x):
        h = self.emb(x)
        for l in self.layers:
            h, _ = l(h)
        return self.head(torch.cat([h.mean(1), h.max(1).values], 1))


m = Encoder()
tokens = torch.randint(0, 6000, (256, 40))
labels = torch.randint(0, 2, (256,))
groups = [m.head, m.layers[2], m.layers[1], m.layers[0], m.emb]
for p in m.parameters():
    p.requires_grad = False
for stage in range(len(groups)):
    for p in groups[stage].parameters():
        p.requires_grad = True
    opt = torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=1e-3 / 2.6**stage)
    for i in range(0, 256, 32):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(m(tokens[i : i + 32]), labels[i : i + 32])
        loss.backward()
        opt.step()
    print(stage, loss.item())
