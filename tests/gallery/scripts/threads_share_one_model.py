"""Four threads update one model without locks, with SGD each: weights differ each time, that they are finite does not."""
import concurrent.futures

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(32, 8)  # whose weight no pass keeps, so that an update in between does not invalidate it


def work(rank):
    generator = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(30):
        inputs = torch.randn(16, 32, generator=generator)
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(inputs), inputs[:, :8].argmax(1)).backward()
        optimizer.step()
    return rank


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(sorted(pool.map(work, range(8))))
print(all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()))
