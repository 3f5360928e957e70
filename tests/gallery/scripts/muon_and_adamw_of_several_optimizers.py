"""Several optimizers behind one step, one of them written by hand."""
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
class Multi(torch.optim.Optimizer):
    """as research code does: an Optimizer of Optimizers, without super().__init__"""
    def __init__(s, *opts): s.opts = opts; s.state = {}; s.defaults = {}; s.n = 0
    @property
    def param_groups(s): return [g for o in s.opts for g in o.param_groups]
    def zero_grad(s, set_to_none=True):
        for o in s.opts: o.zero_grad(set_to_none)
    def step(s, closure=None):
        s.n += 1
        for k, o in enumerate(s.opts):
            if k != 2 or s.n % 3 == 0: o.step()
    def state_dict(s): return [o.state_dict() for o in s.opts]
torch.manual_seed(7)
net = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(32, 16, bias=False), nn.LayerNorm(16), nn.Linear(16, 20))
opt = Multi(torch.optim.Muon([net[2].weight], lr=.01), torch.optim.AdamW([net[0].weight, *net[3].parameters()], lr=.01), torch.optim.SGD(net[4].parameters(), lr=.1, momentum=.9, nesterov=True))
hooks = []; h = opt.opts[0].register_step_post_hook(lambda *a: hooks.append(len(a)))
sched = torch.optim.lr_scheduler.LambdaLR(opt.opts[1], lambda e: 1 / (1 + e)); seq = torch.optim.lr_scheduler.SequentialLR(opt.opts[2], [torch.optim.lr_scheduler.ConstantLR(opt.opts[2], .5, 3), torch.optim.lr_scheduler.ExponentialLR(opt.opts[2], .9)], [6])
import warnings; warnings.simplefilter("ignore")
for i in range(24):
    t = torch.randint(0, 20, (8, 4)); loss = nn.functional.cross_entropy(net(t), t[:, 0])
    opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(net.parameters(), 1., foreach=True); opt.step(); sched.step(); seq.step()
print(len(hooks), [g["lr"] for g in opt.param_groups], sha(net))
