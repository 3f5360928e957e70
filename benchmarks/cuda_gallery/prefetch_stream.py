"""A prefetcher: side stream, non_blocking copies from pinned memory, DataLoader with workers."""
import hashlib
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import torch.nn.functional as F
from torch import nn

torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False
DEV = 'cuda' if torch.cuda.is_available() else 'cpu'


def truth(text):
    path = os.environ.get("STEPSCOPE_TRUTH")
    if path:
        with open(path, "a") as file:
            file.write(f"{text}\n")


def finish(models, updates):
    total = hashlib.sha256()
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            total.update(name.encode())
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    print("weights", total.hexdigest())
    print("rng", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
    if torch.cuda.is_initialized():
        print("cuda rng", hashlib.sha256(torch.cuda.get_rng_state().numpy().tobytes()).hexdigest())
    truth(f"UPDATES {updates}")


def net(width=32):
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                         nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
                         nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
                         nn.Flatten(), nn.Dropout(0.1), nn.Linear(2 * width * 64, 10))


def batch(i, n=64):
    g = torch.Generator().manual_seed(1000 + i)
    return torch.randn(n, 3, 32, 32, generator=g), torch.randint(0, 10, (n,), generator=g)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40 * 32

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(3, 32, 32, generator=g), int(torch.randint(0, 10, (), generator=g))


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream() if DEV == "cuda" else None
        self.preload()

    def preload(self):
        try:
            self.x, self.y = next(self.loader)
        except StopIteration:
            self.x = None
            return
        if self.stream is None:
            return
        with torch.cuda.stream(self.stream):
            self.x = self.x.cuda(non_blocking=True)
            self.y = self.y.cuda(non_blocking=True)
            self.x = self.x.mul(0.5).sub_(0.1)

    def next(self):
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        x, y = self.x, self.y
        if x is not None:
            if self.stream is not None:
                x.record_stream(torch.cuda.current_stream())
                y.record_stream(torch.cuda.current_stream())
            self.preload()
        return x, y


if __name__ == "__main__":
    torch.manual_seed(5)
    loader = torch.utils.data.DataLoader(Data(), 32, shuffle=True, num_workers=2, pin_memory=DEV == "cuda")
    model = net().to(DEV)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    fetcher = Prefetcher(loader)
    if DEV == "cuda":
        print("stream", fetcher.stream.stream_id, torch.cuda.current_stream().cuda_stream, torch.cuda.Stream().stream_id)
    x, y = fetcher.next()
    i = 0
    while x is not None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 5 == 0:
            print(i, loss.item().hex())
        i += 1
        x, y = fetcher.next()
    finish([model], i)
