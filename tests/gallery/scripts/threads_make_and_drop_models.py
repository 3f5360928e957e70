"""Four threads make, train and drop many small models, so that gradients and optimizer states come and go all the time."""
import concurrent.futures
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)


def work(rank):
    generator = torch.Generator().manual_seed(rank)
    digest = hashlib.sha256()
    for turn in range(6):
        layers = [nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]
        model = nn.Sequential(*layers)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        kind = (torch.optim.Adam, torch.optim.SGD)[turn % 2]
        optimizer = kind(model.parameters(), lr=0.01)
        for _ in range(5):
            inputs = torch.randn(8, 16, generator=generator)
            model.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
            optimizer.step()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for result in pool.map(work, range(8)):
        print(result)
