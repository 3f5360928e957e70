"""Two workers, sentences of unequal length padded to the longest of a batch, packed GRU."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, n):
        rnd = random.Random(0)
        self.items = [[rnd.randrange(1, 8000) for _ in range(rnd.randint(5, 90))] for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        s = self.items[i]
        return torch.tensor(s), sum(s) % 4


def collate(batch):
    seqs, labels = zip(*batch)
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True), lengths, torch.tensor(labels)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(8000, 256, padding_idx=0)
        self.rnn = nn.GRU(256, 256, batch_first=True, bidirectional=True)
        self.out = nn.Linear(512, 4)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.emb(x), lengths, batch_first=True, enforce_sorted=False)
        _, h = self.rnn(packed)
        return self.out(torch.cat([h[0], h[1]], 1))


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(
        Sentences(1600), batch_size=64, shuffle=True, num_workers=2, collate_fn=collate, prefetch_factor=4
    )
    model = Tagger()
    opt = torch.optim.Adam(model.parameters())
    for epoch in range(1):
        for x, lengths, y in loader:
            loss = nn.functional.cross_entropy(model(x, lengths), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        print(epoch, loss.item())
