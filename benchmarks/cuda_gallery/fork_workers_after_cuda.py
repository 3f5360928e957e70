"""DataLoader with fork workers started anew each epoch, after CUDA is initialised; pinned, persistent in a second loader."""
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


def net(wide=256, deep=4, inputs=64, outputs=10, drop=0.1):
    layers = [nn.Linear(inputs, wide), nn.ReLU()]
    for _ in range(deep):
        layers += [nn.Linear(wide, wide), nn.ReLU(), nn.Dropout(drop)]
    return nn.Sequential(*layers, nn.Linear(wide, outputs))


def batch(i, n=128, inputs=64):
    g = torch.Generator().manual_seed(1000 + i)
    return torch.randn(n, inputs, generator=g), torch.randint(0, 10, (n,), generator=g)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        return torch.randn(64), int(torch.randint(0, 10, ()))


if __name__ == "__main__":
    torch.manual_seed(25)
    model = net(128).to(DEV)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first = torch.utils.data.DataLoader(Data(), 32, shuffle=True, num_workers=2, multiprocessing_context="fork",
                                        pin_memory=DEV == "cuda")
    second = torch.utils.data.DataLoader(Data(), 64, num_workers=2, persistent_workers=True, pin_memory=DEV == "cuda")
    updates = 0
    for loader in (first, second, first, second):
        for x, y in loader:
            x, y = x.to(DEV, non_blocking=True), y.to(DEV, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            updates += 1
        print(updates, loss.item().hex())
    finish([model], updates)
