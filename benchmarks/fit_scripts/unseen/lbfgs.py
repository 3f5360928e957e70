"""LBFGS with a closure on a full batch (physics-informed net, second derivatives)."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(2, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 1)
)
pts = torch.rand(6000, 2, requires_grad=True)
bc = torch.rand(500, 2)
bc[:, 0] = 0
opt = torch.optim.LBFGS(net.parameters(), max_iter=10, history_size=50, line_search_fn="strong_wolfe")


def closure():
    opt.zero_grad()
    u = net(pts)
    du = torch.autograd.grad(u.sum(), pts, create_graph=True)[0]
    d2 = torch.autograd.grad(du[:, 1].sum(), pts, create_graph=True)[0][:, 1:]
    res = du[:, :1] + u * du[:, 1:] - 0.01 * d2
    loss = res.pow(2).mean() + net(bc).pow(2).mean()
    loss.backward()
    return loss


for epoch in range(3):
    print(epoch, opt.step(closure).item())
