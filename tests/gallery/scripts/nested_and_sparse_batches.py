"""Batches are nested tensors, of both layouts, bags with sparse gradients, and sparse matrices."""
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


import torch, warnings
warnings.simplefilter("ignore")
from torch import nn
torch.manual_seed(22); net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)); opt = torch.optim.SGD(net.parameters(), lr=.05)
emb = nn.EmbeddingBag(10, 4, mode="sum", sparse=True); o2 = torch.optim.SparseAdam(emb.parameters(), lr=.01)
for i in range(15):
    nt = torch.nested.nested_tensor([torch.randn(2 + (i + k) % 4, 4) for k in range(5)], layout=torch.jagged if i % 2 else torch.strided)
    loss = sum(t.square().mean() for t in net(nt).unbind()); opt.zero_grad(); loss.backward(); opt.step()
for i in range(15):
    idx = torch.randint(0, 10, (12,)); off = torch.tensor([0, 3, 7]); o2.zero_grad(); net(emb(idx, off)).square().mean().backward(); o2.step()
for i in range(5):
    sp = torch.randn(6, 4).relu().to_sparse(); opt.zero_grad(); (torch.sparse.mm(sp, net[0].weight.t()).square().mean()).backward(); opt.step()
print(sha(net), sha(emb))
