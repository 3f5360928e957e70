"""A GAN: critic and generator each on a stream of its own, at the same time; two optimizers."""
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


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class On:
    """with On(stream): does nothing on a CPU."""

    def __init__(self, stream):
        self.context = torch.cuda.stream(stream)

    def __enter__(self):
        return self.context.__enter__()

    def __exit__(self, *error):
        return self.context.__exit__(*error)


torch.manual_seed(27)
G, D = mlp(32, 256, 256, 64).to(DEV), mlp(64, 256, 256, 1).to(DEV)
shadow = mlp(64, 256, 256, 1).to(DEV)  # the critic that the generator sees: of the round before
shadow.load_state_dict(D.state_dict())
shadow.requires_grad_(False)
g_opt, d_opt = (torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999)) for m in (G, D))
one, two = (torch.cuda.Stream(), torch.cuda.Stream(priority=-1)) if DEV == "cuda" else (None, None)
if DEV == "cuda":
    print("streams", one.stream_id, two.stream_id)
    torch.cuda.synchronize()
data = torch.randn(40, 64, 64, generator=torch.Generator().manual_seed(1)).to(DEV)
for i in range(40):
    noise = torch.randn(64, 32, device=DEV)
    with torch.no_grad():
        old = G(noise)
    for stream in (one, two):
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
    with On(one):
        d_opt.zero_grad()
        d_loss = F.softplus(-D(data[i])).mean() + F.softplus(D(old)).mean()
        d_loss.backward()
        d_opt.step()
    with On(two):
        g_opt.zero_grad()
        g_loss = F.softplus(-shadow(G(noise))).mean()
        g_loss.backward()
        g_opt.step()
    for stream in (one, two):
        if stream is not None:
            torch.cuda.current_stream().wait_stream(stream)
    shadow.load_state_dict(D.state_dict())
    if i % 5 == 0:
        print(i, d_loss.item().hex(), g_loss.item().hex())
finish([G, D], 40)  # rounds
truth("NOTE 80 updates in 40 rounds")
