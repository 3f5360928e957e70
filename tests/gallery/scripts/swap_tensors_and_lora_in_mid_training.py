"""Tensors are swapped, and layers changed for others, while it trains."""
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


import torch, copy
from torch import nn
torch.__future__.set_swap_module_params_on_conversion(True)
class LoRA(nn.Module):
    def __init__(s, base, r=2):
        super().__init__(); s.base = base; base.requires_grad_(False); s.merged = False
        s.A = nn.Parameter(torch.randn(r, base.in_features) * .1); s.B = nn.Parameter(torch.zeros(base.out_features, r))
    def forward(s, x): return s.base(x) if s.merged else s.base(x) + x @ s.A.t() @ s.B.t()
    def train(s, mode=True):
        if mode and s.merged: s.base.weight.data -= s.B.data @ s.A.data; s.merged = False
        if not mode and not s.merged: s.base.weight.data += s.B.data @ s.A.data; s.merged = True
        return super().train(mode)
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 10), nn.GELU(), nn.Linear(10, 1))
opt = torch.optim.Adam(net[4].parameters(), lr=.01); g = torch.Generator().manual_seed(9); dt = torch.float32
def data(): return torch.randn(4, 6, generator=g).to(dt)
for i in range(30):
    if i == 6: opt.add_param_group({"params": list(net[2].parameters()), "lr": .005})           # gradual unfreezing
    if i == 10:                                                                                   # LoRA into the trained net
        for k in ("0", "2"): setattr(net, k, LoRA(net._modules[k]))
        opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=.02)
    if i == 15: net.double(); dt = torch.float64; opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=.02)                                                  # swap_tensors in .to()
    if i == 18: torch.utils.swap_tensors(net[4].weight, nn.Parameter(net[4].weight.detach() * .5)); opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], .1)
    if i == 22: net.float(); dt = torch.float32; del net[3]; net.insert(3, nn.Tanh())
    if i % 5 == 4:
        net.eval()
        with torch.no_grad(): print(i, f"{net(torch.ones(3, 6, dtype=dt)).sum().item():.6f}")
        net.train()
    loss = (net(data()) - 1).square().mean(); opt.zero_grad(); loss.backward(); opt.step()
net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True); print(sha(net), [type(m).__name__ for m in net])
