"""A convolutional autoencoder with Lightning: two workers, validation, the best model kept by ModelCheckpoint."""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(L.LightningModule):
    def __init__(self, width=32, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(4 * width * 64, 256),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(256, 4 * width * 64), nn.ReLU(), nn.Unflatten(1, (4 * width, 8, 8)),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(0)
    data = torch.rand(640, 3, 64, 64)
    train = DataLoader(TensorDataset(data[:512]), batch_size=64, shuffle=True, num_workers=2)
    valid = DataLoader(TensorDataset(data[512:]), batch_size=128, num_workers=2)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        callbacks=[ModelCheckpoint(dirpath="checkpoints", monitor="val_loss", save_top_k=1)],
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(AutoEncoder(), train, valid)
    print(trainer.callback_metrics["val_loss"].item())


if __name__ == "__main__":
    main()
