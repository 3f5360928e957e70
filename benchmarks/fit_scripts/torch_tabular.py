"""Regress a table with a wide network: batches from a DataLoader, validation, the best weights are kept on disk."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--hidden", type=int, default=2048)
parser.add_argument("--lr", type=float, default=1e-3)
args = parser.parse_args()

torch.manual_seed(0)
features = torch.randn(20_000, 96)
target = features[:, :4].sum(1, keepdim=True) + 0.1 * torch.randn(20_000, 1)
train_set, valid_set = random_split(TensorDataset(features, target), [16_000, 4_000])
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
valid_loader = DataLoader(valid_set, batch_size=2048)

model = nn.Sequential(
    nn.Linear(96, args.hidden), nn.BatchNorm1d(args.hidden), nn.GELU(), nn.Dropout(0.1),
    nn.Linear(args.hidden, args.hidden), nn.BatchNorm1d(args.hidden), nn.GELU(), nn.Dropout(0.1),
    nn.Linear(args.hidden, 1),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
criterion = nn.MSELoss()

best = float("inf")
for epoch in range(args.epochs):
    model.train()
    running = 0.0
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(inputs)
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, labels in valid_loader:
            total += criterion(model(inputs), labels).item() * len(inputs)
    valid = total / len(valid_set)
    scheduler.step(valid)
    print(f"epoch {epoch}: train {running / len(train_set):.4f}, valid {valid:.4f}")
    if valid < best:
        best = valid
        torch.save(model.state_dict(), "best.pt")
