"""A spawned process gets tensors on the GPU through a queue (CUDA IPC) and sends its gradients back."""
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


import torch.multiprocessing as mp


def work(tasks, answers):
    while (task := tasks.get()) is not None:
        answers.put(task.mul(2).cpu().sum().item())
        del task
    answers.put("done")


if __name__ == "__main__":
    torch.manual_seed(49)
    context = mp.get_context("spawn")
    tasks, answers = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(tasks, answers))
    process.start()
    model = net(128).to(DEV)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(30):
        x, y = batch(i)
        optimizer.zero_grad()
        hidden = model(x.to(DEV))
        loss = F.cross_entropy(hidden, y.to(DEV))
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            sent = hidden.detach().double().clone()
            tasks.put(sent)
            print(i, loss.item().hex(), answers.get(timeout=60).hex())
    tasks.put(None)
    print(answers.get(timeout=60))
    process.join()
    print("worker", process.exitcode)
    finish([model], 30)
