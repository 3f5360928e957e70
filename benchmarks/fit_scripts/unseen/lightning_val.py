"""Lightning: training, validation each epoch, ModelCheckpoint, two workers, torchmetrics."""

import lightning as L
import torch
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(48, 96, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )
        self.acc = torchmetrics.Accuracy(task="multiclass", num_classes=10)
        self.save_hyperparameters()
        self.net(torch.zeros(1, 3, 48, 48))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.acc(self.net(x), y)
        self.log("val_acc", self.acc, prog_bar=True)

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), 1e-3)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1)]


def main():
    L.seed_everything(0)

    def make(n):
        return TensorDataset(torch.randn(n, 3, 48, 48), torch.randint(0, 10, (n,)))

    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[ModelCheckpoint(monitor="val_acc", mode="max")], log_every_n_steps=2
    )
    trainer.fit(
        Lit(),
        DataLoader(make(400), batch_size=50, shuffle=True, num_workers=2),
        DataLoader(make(200), batch_size=200, num_workers=2),
    )


if __name__ == "__main__":
    main()
