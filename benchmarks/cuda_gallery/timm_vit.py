"""A timm ViT (random weights, unfused attention), fp32, an average of its weights; a plain net where timm is not."""
import hashlib
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import torch.nn.functional as F
from torch import nn

torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False
DEV = 'cuda' if torch.cuda.is_available() else 'cpu'


def truth(text):
    path = os.environ.get("STEPSCOPE_TRUTH")
    if path:
        with open(path, "a") as file:
            file.write(f"{text}\n")


def finish(models, updates):
    total = hashlib.sha256()
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            total.update(name.encode())
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    print("weights", total.hexdigest())
    print("rng", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
    if torch.cuda.is_initialized():
        print("cuda rng", hashlib.sha256(torch.cuda.get_rng_state().numpy().tobytes()).hexdigest())
    truth(f"UPDATES {updates}")


try:
    import timm
    import timm.layers
    from timm.utils import ModelEmaV2
except ImportError:
    timm = None

torch.manual_seed(47)
if timm is not None:
    timm.layers.set_fused_attn(False)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, embed_dim=96, num_heads=3,
                              num_classes=10, drop_path_rate=0.1).to(DEV)
    ema = ModelEmaV2(model, decay=0.9)
else:
    model, ema = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(DEV), None
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for i in range(40):
    g = torch.Generator().manual_seed(i)
    x, y = torch.randn(32, 3, 32, 32, generator=g).to(DEV), torch.randint(0, 10, (32,), generator=g).to(DEV)
    loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if ema is not None:
        ema.update(model)
    if i % 5 == 0:
        print(i, loss.item().hex())
finish([model] + ([ema.module] if ema is not None else []), 40)
