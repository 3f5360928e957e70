"""Teacher and student; teacher without gradients, in eval mode."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


def convnet(w, d):
    layers, c = [], 3
    for i in range(d):
        layers += [
            nn.Conv2d(c, w * 2**i, 3, padding=1),
            nn.BatchNorm2d(w * 2**i),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        ]
        c = w * 2**i
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 20))


teacher, student = convnet(96, 4).eval(), convnet(16, 4)
opt = torch.optim.SGD(student.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
T = 4.0
for step in range(6):
    x, y = torch.randn(48, 3, 64, 64), torch.randint(0, 20, (48,))
    with torch.no_grad():
        t = teacher(x)
    s = student(x)
    loss = 0.3 * F.cross_entropy(s, y) + 0.7 * T * T * F.kl_div(
        F.log_softmax(s / T, 1), F.softmax(t / T, 1), reduction="batchmean"
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 2 == 0:
        print(step, loss.item())
