"""Two workers load pictures that are scaled one by one. A script for `benchmarks.fit_limit`."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Images(Dataset[tuple[Tensor, int]]):
    """600 pictures of 8 bits."""

    def __init__(self) -> None:
        self.pixels = torch.randint(0, 255, (600, 3, 224, 224), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.pixels[number].float() / 255, number % 10


model = nn.Sequential(
    nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images = Images()
for epoch in range(2):
    for x, y in DataLoader(images, batch_size=32, num_workers=2):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(epoch, loss.item())
