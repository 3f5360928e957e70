"""Functions of autograd whose outputs are no tensors in part."""
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
from torch.autograd import Function, forward_ad as fwAD
from torch.autograd.function import once_differentiable
calls = []
class Odd(Function):
    @staticmethod
    def forward(ctx, x, w, cfg):
        ctx.set_materialize_grads(False); ctx.save_for_backward(x, w); ctx.cfg = cfg
        idx = x.argmax(1); ctx.mark_non_differentiable(idx); calls.append(("f", ctx.needs_input_grad))
        return x @ w, "text", None, {"k": 1}, idx, (3, x.shape)
    @staticmethod
    @once_differentiable
    def backward(ctx, g, *others):
        calls.append(("b", [type(o).__name__ for o in others])); x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g, None
class Cube(Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x): return x ** 3, 3 * x ** 2
    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs; r, d = output; ctx.save_for_backward(x, d); ctx.save_for_forward(x, d); ctx.mark_non_differentiable(d)
    @staticmethod
    def backward(ctx, g, _): x, d = ctx.saved_tensors; return g * d
    @staticmethod
    def jvp(ctx, t): x, d = ctx.saved_tensors; return t * d, None
class NoInput(Function):
    @staticmethod
    def forward(ctx, f, x):
        ctx.f = f; ctx.x = x.detach().requires_grad_()
        with torch.enable_grad(): ctx.y = f(ctx.x)
        return ctx.y.detach()
    @staticmethod
    def backward(ctx, g): calls.append("n"); torch.autograd.backward(ctx.y, g); return None, ctx.x.grad
class Net(nn.Module):
    def __init__(s): super().__init__(); s.w = nn.Parameter(torch.randn(4, 4) * .3); s.o = nn.Linear(4, 1)
    def forward(s, x):
        y, t, n, d, idx, tup = Odd.apply(x, s.w, {"a": [1]}); assert (t, n, d["k"]) == ("text", None, 1)
        z = Cube.apply(y * .5)[0]
        return NoInput.apply(s.o, z), idx
torch.manual_seed(3); net = Net(); opt = torch.optim.RMSprop(net.parameters(), lr=.01)
for i in range(25):
    x = torch.randn(6, 4, requires_grad=i % 2 == 0)
    out, idx = net(x); loss = out.square().mean() + idx.float().mean()
    opt.zero_grad(); loss.backward(); opt.step()
v = torch.func.vmap(torch.func.grad(lambda a: Cube.apply(a)[0].sum()))(torch.arange(6.).view(2, 3)); print(v.tolist())
with fwAD.dual_level():
    d = fwAD.make_dual(torch.arange(3.), torch.ones(3)); print(fwAD.unpack_dual(Cube.apply(d)[0]).tangent.tolist())
try: torch.autograd.grad(torch.autograd.grad(net(torch.randn(2, 4, requires_grad=True))[0].sum(), net.w, create_graph=True)[0].sum(), net.w)
except RuntimeError as e: print(str(e).splitlines()[0][:80])
print(len(calls), calls[:6], net.o.bias.grad is not None, sha(net)); raise SystemExit(11)
