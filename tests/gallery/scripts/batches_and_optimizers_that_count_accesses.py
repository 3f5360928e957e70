"""Mappings, properties and models that count how often they are asked."""
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


# batches, loaders, models and optimizers count every special method and attribute asked of them
import collections, torch
from torch import nn
C = collections.Counter()
class Batch(collections.abc.Mapping):
    def __init__(self, d): self.d = d
    def __len__(self): C["Batch.len"] += 1; return len(self.d)
    def __iter__(self): C["Batch.iter"] += 1; return iter(self.d)
    def __getitem__(self, k): C["Batch.getitem"] += 1; return self.d[k]
    def __getattr__(self, n):
        if n != "d": C["Batch.getattr." + n] += 1
        raise AttributeError(n)
    def __eq__(self, o): C["Batch.eq"] += 1; return self is o
    def __hash__(self): C["Batch.hash"] += 1; return 1
    def __repr__(self): C["Batch.repr"] += 1; return "Batch"
    def __bool__(self): C["Batch.bool"] += 1; return True
class Data(torch.utils.data.Dataset):
    def __init__(self): self.x = torch.randn(50, 4)
    def __len__(self): C["Data.len"] += 1; return 50
    def __getitem__(self, i): C["Data.getitem"] += 1; return self.x[i]
class Loader(torch.utils.data.DataLoader):
    def __len__(self): C["Loader.len"] += 1; return super().__len__()
    def __iter__(self): C["Loader.iter"] += 1; return super().__iter__()
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a = nn.Linear(4, 9); self.b = nn.Linear(9, 1)
    def forward(self, batch): return self.b(self.a(batch["x"]).relu())
    def parameters(self, *a, **k): C["Net.parameters"] += 1; return super().parameters(*a, **k)
    def named_parameters(self, *a, **k): C["Net.named_parameters"] += 1; return super().named_parameters(*a, **k)
    def named_modules(self, *a, **k): C["Net.named_modules"] += 1; return super().named_modules(*a, **k)
    def named_children(self): C["Net.named_children"] += 1; return super().named_children()
    def children(self): C["Net.children"] += 1; return super().children()
    def modules(self): C["Net.modules"] += 1; return super().modules()
    def buffers(self, *a): C["Net.buffers"] += 1; return super().buffers(*a)
    def extra_repr(self): C["Net.extra_repr"] += 1; return ""
    def __getattr__(self, n): C["Net.getattr." + n] += 1; return super().__getattr__(n)
    def __hash__(self): C["Net.hash"] += 1; return id(self)
    def __eq__(self, o): C["Net.eq"] += 1; return self is o
    def __dir__(self): C["Net.dir"] += 1; return super().__dir__()
    def _get_name(self): C["Net._get_name"] += 1; return "Net"
class Opt(torch.optim.SGD):
    @property
    def param_groups(self): C["Opt.param_groups"] += 1; return self.__dict__["_pg"]
    @param_groups.setter
    def param_groups(self, v): self.__dict__["_pg"] = v
    @property
    def defaults(self): C["Opt.defaults"] += 1; return self.__dict__["_df"]
    @defaults.setter
    def defaults(self, v): self.__dict__["_df"] = v
    def __hash__(self): C["Opt.hash"] += 1; return id(self)
    def __eq__(self, o): C["Opt.eq"] += 1; return self is o
    def state_dict(self): C["Opt.state_dict"] += 1; return super().state_dict()
torch.manual_seed(1)
net = Net(); opt = Opt(net.parameters(), lr=0.05, momentum=0.9)
loader = Loader(Data(), batch_size=8, shuffle=True, collate_fn=lambda rows: Batch({"x": torch.stack(rows)}))
for epoch in range(3):
    for batch in loader:                       # 7 batches: 8*6+2
        opt.zero_grad(); net(batch).pow(2).mean().backward(); opt.step()
for k in sorted(C): print(k, C[k])
print(sha(net))
