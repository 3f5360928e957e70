"""word2vec with sparse embeddings and SparseAdam, negative sampling."""

import torch
from torch import nn

torch.manual_seed(0)
V, D = 120_000, 128
inp, out = nn.Embedding(V, D, sparse=True), nn.Embedding(V, D, sparse=True)
opt = torch.optim.SparseAdam(list(inp.parameters()) + list(out.parameters()), lr=1e-3)
for step in range(12):
    c = torch.randint(0, V, (1024,))
    p = torch.randint(0, V, (1024,))
    n = torch.randint(0, V, (1024, 10))
    e = inp(c)
    pos = (e * out(p)).sum(1)
    neg = torch.bmm(out(n), e.unsqueeze(2)).squeeze(2)
    loss = -(nn.functional.logsigmoid(pos) + nn.functional.logsigmoid(-neg).sum(1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
