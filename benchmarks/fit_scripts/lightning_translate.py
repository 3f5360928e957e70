"""A sequence-to-sequence transformer with a LightningDataModule, accumulated gradients, clipping, early stopping."""

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB, LENGTH = 3000, 48


class Reversed(Dataset):
    def __init__(self, n, seed):
        self.source = torch.randint(3, VOCAB, (n, LENGTH), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return self.source[index], self.source[index].flip(0)


class Data(LightningDataModule):
    def setup(self, stage=None):
        self.train, self.valid = Reversed(320, 0), Reversed(96, 1)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.valid, batch_size=32)


class Translate(LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 192)
        self.place = nn.Parameter(torch.randn(LENGTH, 192) * 0.02)
        self.net = nn.Transformer(192, 6, 3, 3, 768, batch_first=True, norm_first=True)
        self.head = nn.Linear(192, VOCAB)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.net(self.embed(source) + self.place, self.embed(target) + self.place, tgt_mask=mask)
        return self.head(hidden)

    def _shared(self, batch):
        source, target = batch
        start = torch.cat([torch.ones_like(target[:, :1]), target[:, :-1]], 1)
        return self.loss(self(source, start).flatten(0, 1), target.flatten())

    def training_step(self, batch, _):
        loss = self._shared(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self._shared(batch), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


if __name__ == "__main__":
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[EarlyStopping("val_loss"), LearningRateMonitor()],
        logger=CSVLogger("logs"),
        log_every_n_steps=5,
        enable_progress_bar=False,
    )
    trainer.fit(Translate(), Data())
    trainer.validate(datamodule=Data(), ckpt_path="best")
