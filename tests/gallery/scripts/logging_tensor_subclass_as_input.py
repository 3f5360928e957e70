"""Inputs of a tensor subclass that logs what is done with it."""
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


# inputs (and one parameter) are a tensor subclass that logs every use through __torch_function__
import collections, torch
from torch import nn
LOG = collections.Counter(); ORDER = []
class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__qualname__", None) or getattr(func, "__name__", str(func))
        if name in ("__get__", "__set__"):
            name = f"{getattr(func.__self__, '__name__', '?')}.{name}"
        LOG[name] += 1; ORDER.append(name)
        return super().__torch_function__(func, types, args, kwargs or {})
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for i in range(20):
    x = torch.randn(8, 6).as_subclass(Logged)
    loss = model(x).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
for k in sorted(LOG): print(k, LOG[k])
import hashlib; print(len(ORDER), hashlib.sha256("|".join(ORDER).encode()).hexdigest()[:12])
print(sha(model)); raise SystemExit(3)
