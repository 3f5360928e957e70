"""An LSTM is trained in a thread on a stream of its own; the main thread waits and then goes on."""
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


def train(model, optimizer, first, count, tell=5, n=64):
    for i in range(first, first + count):
        x, y = batch(i, n)
        x, y = x.to(DEV), y.to(DEV)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if i % tell == 0:
            print(i, loss.item().hex(), flush=True)


import threading


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(16, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


def batch(i, n=64):
    g = torch.Generator().manual_seed(1000 + i)
    return torch.randn(n, 20, 16, generator=g), torch.randint(0, 10, (n,), generator=g)


torch.manual_seed(26)
model = Net().to(DEV)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)


def work():
    if DEV == "cuda":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            train(model, optimizer, 0, 40)
        stream.synchronize()
        print("stream", stream.stream_id)
    else:
        train(model, optimizer, 0, 40)


thread = threading.Thread(target=work, name="trainer")
thread.start()
thread.join()
print("threads", threading.active_count())
train(model, optimizer, 40, 10)
finish([model], 50)
