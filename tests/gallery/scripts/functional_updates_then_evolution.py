"""Functional updates, then evolution without gradients."""
import hashlib
def sha(obj):
    import torch
    h = hashlib.sha256()
    items = obj.state_dict().items() if hasattr(obj, "state_dict") else enumerate(obj)
    for k, v in items:
        if isinstance(v, torch.Tensor):
            v = v.detach()
            h.update(str(k).encode()); h.update(str(v.dtype).encode()); h.update(v.contiguous().as_subclass(torch.Tensor).numpy().tobytes())
    return h.hexdigest()[:16]


# torch's functional optimizer, then hand-written foreach updates of a flat vector: no Optimizer object at all
import torch
from torch import nn
from torch.optim.adamw import adamw
from torch.nn.utils import parameters_to_vector, vector_to_parameters
torch.manual_seed(6); net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
P = list(net.parameters()); m = [torch.zeros_like(p) for p in P]; v = [torch.zeros_like(p) for p in P]; st = [torch.zeros(()) for p in P]
for i in range(20):
    x = torch.randn(8, 4); net.zero_grad(); (net(x) - x.sum(1, True)).square().mean().backward()
    with torch.no_grad(): adamw(P, [p.grad for p in P], m, v, [], st, foreach=True, amsgrad=False, beta1=.9, beta2=.99, lr=.01, weight_decay=.01, eps=1e-8, maximize=False)
for i in range(10):
    x = torch.randn(8, 4); gr = torch.autograd.grad((net(x) - x.sum(1, True)).square().mean(), P)
    vec = parameters_to_vector(P).detach(); flat = torch.cat([a.reshape(-1) for a in gr]); vector_to_parameters(vec - .01 * flat, P)
print(sha(net)); raise SystemExit(5)
