"""No nn.Module, no optimizer class: leaf tensors and a hand-written update."""

import torch

torch.manual_seed(0)
N, D, H, C = 512, 3000, 2000, 50
w1 = (torch.randn(D, H) * 0.02).requires_grad_()
b1 = torch.zeros(H, requires_grad=True)
w2 = (torch.randn(H, C) * 0.02).requires_grad_()
b2 = torch.zeros(C, requires_grad=True)
params = [w1, b1, w2, b2]
vel = [torch.zeros_like(p) for p in params]
for it in range(15):
    x = torch.randn(N, D)
    t = torch.randint(0, C, (N,))
    h = torch.relu(x @ w1 + b1)
    logp = torch.log_softmax(h @ w2 + b2, 1)
    loss = -logp[torch.arange(N), t].mean()
    loss.backward()
    with torch.no_grad():
        for p, v in zip(params, vel):
            v.mul_(0.9).add_(p.grad)
            p -= 0.01 * v
            p.grad = None
    if it % 5 == 0:
        print(it, loss.item())
