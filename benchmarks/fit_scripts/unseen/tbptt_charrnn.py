"""Character RNN by truncated backpropagation, hidden state carried and detached, text read from a file."""

import os

import torch
from torch import nn

torch.manual_seed(0)
if not os.path.exists("input.txt"):
    with open("input.txt", "w") as f:
        f.writelines(f"the quick brown fox {i} jumps over {i * i} lazy dogs\n" for i in range(40000))
text = open("input.txt").read()
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])
B, T = 48, 64
ids = ids[: len(ids) // B * B].view(B, -1)
emb, rnn, head = (
    nn.Embedding(len(chars), 64),
    nn.LSTM(64, 384, 2, batch_first=True, dropout=0.2),
    nn.Linear(384, len(chars)),
)
params = [*emb.parameters(), *rnn.parameters(), *head.parameters()]
opt = torch.optim.Adagrad(params, 0.01)
state = None
for i in range(0, 20 * T, T):
    x, y = ids[:, i : i + T], ids[:, i + 1 : i + T + 1]
    h, state = rnn(emb(x), state)
    state = tuple(s.detach() for s in state)
    loss = nn.functional.cross_entropy(head(h).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
