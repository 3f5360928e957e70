"""Train a small vision transformer of timm with mixup and an average of the weights, data in memory."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.utils import ModelEmaV3
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images = torch.rand(240, 3, 96, 96)
labels = torch.randint(0, 10, (240,))
train = DataLoader(TensorDataset(images[:160], labels[:160]), batch_size=32, shuffle=True, drop_last=True)
valid = DataLoader(TensorDataset(images[160:], labels[160:]), batch_size=80)

model = timm.create_model("vit_tiny_patch16_224", img_size=96, num_classes=10, drop_path_rate=0.1, depth=8)
ema = ModelEmaV3(model, decay=0.999)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
criterion = SoftTargetCrossEntropy()

for epoch in range(2):
    model.train()
    for x, y in train:
        x, soft = mixup(x, y)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(x), soft)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in valid:
            hits += (ema.module(x).argmax(-1) == y).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {hits / 80:.2f}")
    torch.save({"model": model.state_dict(), "ema": ema.module.state_dict()}, f"vit-{epoch}.pt")
