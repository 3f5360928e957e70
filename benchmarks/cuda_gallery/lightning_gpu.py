"""Lightning's Trainer on a GPU, automatic optimization, validation."""
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


def net(width=32):
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                         nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
                         nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
                         nn.Flatten(), nn.Dropout(0.1), nn.Linear(2 * width * 64, 10))


def batch(i, n=64):
    g = torch.Generator().manual_seed(1000 + i)
    return torch.randn(n, 3, 32, 32, generator=g), torch.randint(0, 10, (n,), generator=g)


import logging
import warnings

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = net(16)

    def training_step(self, pair, i):
        loss = F.cross_entropy(self.model(pair[0]), pair[1])
        if i % 5 == 0:
            print(self.global_step, self.device.type, loss.item().hex())
        return loss

    def validation_step(self, pair, i):
        print("validation", i, F.cross_entropy(self.model(pair[0]), pair[1]).item().hex())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def loader(first, count, **options):
    pairs = [batch(first + i) for i in range(count)]
    data = torch.utils.data.TensorDataset(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
    return torch.utils.data.DataLoader(data, 64, **options)


if __name__ == "__main__":
    L.seed_everything(45, verbose=False)
    lit = Lit()
    trainer = L.Trainer(accelerator="gpu" if DEV == "cuda" else "cpu", devices=1, max_epochs=2, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        num_sanity_val_steps=1, gradient_clip_val=1.0, deterministic=True)
    trainer.fit(lit, loader(0, 20, shuffle=True), loader(500, 2))
    print("steps", trainer.global_step)
    finish([lit], trainer.global_step)
