"""Checkpoints of both kinds within hooks of saved tensors."""
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


import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop, noop_context_fn
from torch.autograd.graph import saved_tensors_hooks, disable_saved_tensors_hooks, save_on_cpu
log = []
class Block(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(8, 8); s.calls = 0
    def forward(s, x, flag=None): s.calls += 1; return torch.tanh(s.l(x)) + x
torch.manual_seed(2)
m = nn.ModuleList([Block() for _ in range(4)]); head = nn.Linear(8, 1)
opt = torch.optim.SGD([*m.parameters(), *head.parameters()], lr=0.1)
def pack_a(t): log.append(("pa", tuple(t.shape))); return t.double()
def unpack_a(t): log.append(("ua", tuple(t.shape))); return t.float()
def pack_b(t): log.append(("pb", tuple(t.shape))); return (t, "b")
def unpack_b(p): log.append(("ub", p[1])); return p[0]
for i in range(24):
    x = torch.randn(5, 8, requires_grad=True)
    with saved_tensors_hooks(pack_a, unpack_a):
        h = m[0](x)
        with saved_tensors_hooks(pack_b, unpack_b), save_on_cpu():
            h = checkpoint(m[1], h, use_reentrant=True, preserve_rng_state=bool(i % 2))
            h = checkpoint(lambda z: checkpoint(m[2], z, use_reentrant=False), h, use_reentrant=False)
        with set_checkpoint_early_stop(False):
            h = checkpoint(m[3], h, use_reentrant=False, flag=3, determinism_check="none")
    loss = head(h).square().mean()
    if i == 9:
        try:
            with disable_saved_tensors_hooks("not here"):
                with saved_tensors_hooks(pack_a, unpack_a): head(h)
        except RuntimeError as e: print("refused:", e)
    if i == 11:
        try:
            bad = checkpoint(lambda z: (z * 2 if log.append("r") or log.count("r") % 2 else z.sin() * z), h, use_reentrant=False)
            bad.sum().backward(); print("no error")
        except Exception as e: print(type(e).__name__, str(e).splitlines()[0])
        opt.zero_grad(); loss = head(h.detach()).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
import hashlib
print([b.calls for b in m], len(log), hashlib.sha256(repr(log).encode()).hexdigest()[:12]); print(sha(m), sha(head))
