"""LeNet: two convolutions and two linear layers, 21,840 parameters, bound by the cost of launching its ops.

References
  The network: Y. LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 86(11), 1998,
    in the smaller form of https://github.com/pytorch/examples/tree/main/mnist (before 2019).
  The second paper's code: https://github.com/dereklh4/project_744 (there one convolution a filter, 10 + 20 of them,
    so that filters can be frozen; here one convolution a layer: the same parameters and the same sums).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import classifier
from stepscope.workloads.contract import Published


class LeNet(nn.Module):
    """Digits [B, 1, 28, 28] to scores [B, classes]."""

    def __init__(self, filters: tuple[int, int] = (10, 20), hidden: int = 50, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, filters[0], kernel_size=5)
        self.conv2 = nn.Conv2d(filters[0], filters[1], kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(filters[1] * 4 * 4, hidden)
        self.fc1_drop = nn.Dropout()
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))  # [B, 10, 12, 12]
        x = functional.relu(functional.max_pool2d(self.conv2_drop(self.conv2(x)), 2))  # [B, 20, 4, 4]
        x = self.fc1_drop(functional.relu(self.fc1(x.flatten(1))))  # [B, 50]
        scores: Tensor = self.fc2(x)  # [B, 10]
        return scores


WORKLOADS = (
    classifier(
        name="lenet",
        build=LeNet,
        shape=(1, 28, 28),
        classes=10,
        summary="LeNet on handwritten digits: the smallest network of the suite, done in seconds",
        references=(
            "LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998",
            "https://github.com/dereklh4/project_744",
        ),
        default_batch=64,
        tiers=("smoke", "paper-low-power"),
        published=(
            Published(
                quantity="training time with 60 % of the filters trained",
                value="more than 50 % less",
                source="second paper",
                remark="its stored code never thaws a frozen filter: what was timed trains almost none of them",
            ),
        ),
    ),
)
