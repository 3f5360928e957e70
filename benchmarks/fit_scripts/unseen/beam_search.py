"""Seq2seq with a transformer; beam-search evaluation with growing prefixes."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
V, D, BOS, EOS = 8000, 256, 1, 2


class S2S(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.randn(128, D) * 0.02)
        self.tr = nn.Transformer(D, 4, 2, 2, 512, 0.1, batch_first=True)
        self.out = nn.Linear(D, V)

    def encode(self, s):
        return self.tr.encoder(self.emb(s) + self.pos[: s.shape[1]])

    def decode(self, t, mem):
        m = nn.Transformer.generate_square_subsequent_mask(t.shape[1])
        return self.out(self.tr.decoder(self.emb(t) + self.pos[: t.shape[1]], mem, tgt_mask=m, tgt_is_causal=True))


def beam(model, src, width=8, steps=40):
    mem = model.encode(src).repeat(width, 1, 1)
    seqs = torch.full((width, 1), BOS)
    scores = torch.tensor([0.0] + [-1e9] * (width - 1))
    for _ in range(steps):
        lp = F.log_softmax(model.decode(seqs, mem)[:, -1], -1)
        flat = (scores[:, None] + lp).view(-1)
        scores, idx = flat.topk(width)
        seqs = torch.cat([seqs[idx // V], (idx % V)[:, None]], 1)
        if (seqs[:, -1] == EOS).all():
            break
    return seqs[scores.argmax()].tolist()


model = S2S()
opt = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98))
for step in range(6):
    s, t = torch.randint(3, V, (24, 30)), torch.randint(3, V, (24, 32))
    loss = F.cross_entropy(
        model.decode(t[:, :-1], model.encode(s)).reshape(-1, V), t[:, 1:].reshape(-1), label_smoothing=0.1
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
model.eval()
with torch.no_grad():
    for k in range(3):
        print(len(beam(model, torch.randint(3, V, (1, 30)))))
