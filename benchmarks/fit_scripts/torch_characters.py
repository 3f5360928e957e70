"""A language model of characters: an LSTM over a made-up text, gradients accumulated and clipped, state carried on."""

import math
import random

import torch
from torch import nn

SEQUENCE, BATCH, ACCUMULATE, STEPS = 128, 32, 2, 12

random.seed(1)
text = "".join(random.choice("etaoin shrdlu\n.,abcfgjkmpqvwxyz") for _ in range(400_000))
vocabulary = sorted(set(text))
index = {c: i for i, c in enumerate(vocabulary)}
data = torch.tensor([index[c] for c in text], dtype=torch.long)
split = int(0.9 * len(data))
train_data, valid_data = data[:split], data[split:]


def get_batch(source, batch):
    starts = torch.randint(len(source) - SEQUENCE - 1, (batch,))
    x = torch.stack([source[i : i + SEQUENCE] for i in starts])
    y = torch.stack([source[i + 1 : i + SEQUENCE + 1] for i in starts])
    return x, y


class CharModel(nn.Module):
    def __init__(self, size, width=512, layers=2):
        super().__init__()
        self.embed = nn.Embedding(size, 128)
        self.lstm = nn.LSTM(128, width, layers, batch_first=True, dropout=0.2)
        self.out = nn.Linear(width, size)

    def forward(self, x, state=None):
        h, state = self.lstm(self.embed(x), state)
        return self.out(h), state


model = CharModel(len(vocabulary))
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loss_fn = nn.CrossEntropyLoss()
losses = []
for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    for _ in range(ACCUMULATE):
        x, y = get_batch(train_data, BATCH)
        logits, _ = model(x)
        loss = loss_fn(logits.view(-1, logits.size(-1)), y.view(-1)) / ACCUMULATE
        loss.backward()
        losses.append(loss.item())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 6 == 0:
        model.eval()
        with torch.inference_mode():
            x, y = get_batch(valid_data, 4 * BATCH)
            logits, _ = model(x)
            valid = loss_fn(logits.flatten(0, 1), y.flatten()).item()
        model.train()
        print(f"step {step}: loss {sum(losses[-6:]) / 6:.3f}, perplexity {math.exp(valid):.1f}")
        torch.save({"model": model.state_dict(), "step": step}, "lstm.pt")
