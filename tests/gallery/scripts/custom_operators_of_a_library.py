"""Operators defined with torch.library, with gradients of their own."""
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
n = []
@torch.library.custom_op("hostile::scaled_sin", mutates_args=())
def scaled_sin(x: torch.Tensor, k: float) -> torch.Tensor:
    n.append("fwd"); return torch.sin(x) * k
@scaled_sin.register_fake
def _(x, k): return torch.empty_like(x)
def setup(ctx, inputs, output): ctx.save_for_backward(inputs[0]); ctx.k = inputs[1]
def back(ctx, g): n.append("bwd"); (x,) = ctx.saved_tensors; return g * torch.cos(x) * ctx.k, None
scaled_sin.register_autograd(back, setup_context=setup)
lib = torch.library.Library("hostile", "FRAGMENT"); lib.define("twice(Tensor x) -> Tensor"); lib.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
lib2 = torch.library.Library("aten", "IMPL")
class Net(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(5, 7); s.b = nn.Linear(7, 1)
    def forward(s, x): return s.b(torch.ops.hostile.twice(scaled_sin(s.a(x), 1.5)))
torch.manual_seed(4); net = Net(); opt = torch.optim.AdamW(net.parameters(), lr=.02)
for i in range(20):
    if i == 8:
        import warnings; warnings.simplefilter("ignore")
        lib2.impl("sin", lambda x: torch.cos(x - 1.5707963267948966), "CPU")     # override of a kernel in mid-training
    if i == 14: lib2._destroy()
    loss = net(torch.randn(10, 5)).square().mean(); opt.zero_grad(set_to_none=False); loss.backward(); opt.step()
print(torch.library.opcheck(scaled_sin, (torch.randn(3, requires_grad=True), 2.0), test_utils=("test_schema", "test_autograd_registration", "test_faketensor")))
print(len(n), n.count("bwd"), sha(net))
