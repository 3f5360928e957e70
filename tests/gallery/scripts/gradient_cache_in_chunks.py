"""GradCache: representations without gradients, the loss on these, and each chunk again with what came back to it."""
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


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)

encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for number in range(10):
    chunks = torch.randn(32, 8).split(8)
    states, representations = [], []
    with torch.no_grad():
        for chunk in chunks:
            states.append(torch.get_rng_state())
            representations.append(encoder(chunk))
    cached = torch.cat(representations).requires_grad_()
    similar = nn.functional.normalize(cached) @ nn.functional.normalize(cached).T
    loss = nn.functional.cross_entropy(similar / 0.1, torch.arange(32).roll(1))
    loss.backward()
    optimizer.zero_grad()
    for chunk, state, gradient in zip(chunks, states, cached.grad.split(8)):
        with torch.random.fork_rng():
            torch.set_rng_state(state)
            again = encoder(chunk)
        again.backward(gradient)
    optimizer.step()
    print(number, loss.item().hex())
print(sha(encoder.parameters()), sha([torch.get_rng_state()]))
