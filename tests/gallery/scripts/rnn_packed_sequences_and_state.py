"""LSTM on packed sequences with hidden state carried over by detach; inputs are no plain tensors."""
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, size=16):
    inputs, targets = batch(size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item().hex()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 8, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(8, 3)

    def forward(self, packed, state):
        outputs, state = self.rnn(packed, state)
        return self.head(nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)[0][:, 0]), state


model, state = Net(), None
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    lengths = torch.tensor([5, 5, 4, 3, 2, 1])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(6, 5, 8), lengths, batch_first=True)
    outputs, state = model(packed, state)
    state = tuple(part.detach() for part in state)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(outputs, torch.randint(0, 3, (6,)))
    loss.backward()
    optimizer.step()
    print(number, loss.item().hex())
print(sha(model.parameters()))
