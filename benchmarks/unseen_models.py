"""Networks after papers, written by hand without a look at the rules of `fit`: small, each with its own batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.library_cases import OPTIMIZERS
from benchmarks.unseen_sequences import (
    Built,
    conformer,
    decaying,
    dropping,
    experts,
    mamba,
    perceiver,
    pictures,
    rwkv,
    swin,
    wavenet,
)
from stepscope.footprint.jobs import job_of
from stepscope.record.dry import Job

_CROSS = nn.CrossEntropyLoss()


class UNet3D(nn.Module):
    """Three levels, instance norms, trilinear upsampling, Dice (Cicek et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(inplace=True)
            )

        self.a, self.b, self.c = block(1, 8), block(8, 16), block(16, 32)
        self.d, self.e, self.out = block(48, 16), block(24, 8), nn.Conv3d(8, 2, 1)

    def forward(self, x: Tensor) -> Any:
        a = self.a(x)
        b = self.b(functional.max_pool3d(a, 2))
        c = self.c(functional.max_pool3d(b, 2))
        up = functional.interpolate(c, scale_factor=2, mode="trilinear", align_corners=False)
        up = functional.interpolate(self.d(torch.cat([up, b], 1)), scale_factor=2, mode="trilinear")
        return self.out(self.e(torch.cat([up, a], 1)))


def unet3d() -> Built:
    def loss(model: nn.Module, batch: Any) -> Any:
        chance, truth = model(batch[0]).softmax(1)[:, 1], batch[1]
        return 1 - 2 * (chance * truth).sum() / (chance.sum() + truth.sum() + 1)

    return UNet3D(), lambda n: (torch.randn(n, 1, 24, 24, 24), (torch.rand(n, 24, 24, 24) > 0.5).float()), loss


class GAT(nn.Module):
    """Attention over edges by gathering and scattering; 4 heads (Velickovic et al., 2018)."""

    def __init__(self, into: int, out: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.out = heads, out
        self.w = nn.Linear(into, heads * out, bias=False)
        self.a = nn.Parameter(torch.randn(2, heads, out) / 4)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        h = self.w(x).view(-1, self.heads, self.out)
        source, target = edges
        score = functional.leaky_relu((h * self.a[0]).sum(-1)[source] + (h * self.a[1]).sum(-1)[target], 0.2)
        most = torch.full_like(h[..., 0], -1e9).scatter_reduce(
            0, target[:, None].expand_as(score), score, "amax", include_self=False
        )
        weight = torch.exp(score - most[target])
        total = torch.zeros_like(h[..., 0]).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-9)
        return torch.zeros_like(h).index_add(0, target, weight[..., None] * h[source]).flatten(1)


def gat() -> Built:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = GAT(32, 16), GAT(64, 16), nn.Linear(64, 5)

        def forward(self, x: Tensor, edges: Tensor) -> Any:
            return self.head(functional.elu(self.two(functional.elu(self.one(x, edges)), edges)))

    def batch(n: int) -> Any:  # a graph of 50 nodes and 400 edges for each sample
        return torch.randn(50 * n, 32), torch.randint(50 * n, (2, 400 * n)), torch.randint(5, (50 * n,))

    return Net(), batch, lambda model, b: functional.cross_entropy(model(b[0], b[1]), b[2])


class Detector(nn.Module):
    """Learned queries against a feature map by nn.Transformer (DETR, Carion et al., 2020)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 7, 4, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, width, 3, 2, 1), nn.ReLU()
        )
        self.body = nn.Transformer(width, 4, 2, 2, 256, batch_first=True)
        self.query, self.place = nn.Parameter(torch.randn(20, width)), nn.Parameter(torch.randn(144, width))
        self.kind, self.box = (
            nn.Linear(width, 11),
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.stem(x).flatten(2).transpose(1, 2) + self.place
        found = self.body(seen, self.query.expand(len(x), -1, -1))
        return self.kind(found), self.box(found).sigmoid()


def detector() -> Built:
    def loss(model: nn.Module, batch: Any) -> Any:
        kinds, boxes = model(batch[0])
        apart = torch.cdist(boxes, batch[2], p=1)  # a match by the nearest, where the paper solves an assignment
        nearest = apart.argmin(1)
        matched = boxes.gather(1, nearest[..., None].expand(-1, -1, 4))
        return functional.cross_entropy(kinds.transpose(1, 2), batch[1]) + functional.l1_loss(matched, batch[2])

    return Detector(), lambda n: (torch.randn(n, 3, 96, 96), torch.randint(11, (n, 20)), torch.rand(n, 6, 4)), loss


class FNO(nn.Module):
    """Products of low frequencies (Li et al., 2021)."""

    def __init__(self, width: int = 20, modes: int = 8) -> None:
        super().__init__()
        self.lift, self.modes = nn.Conv2d(3, width, 1), modes
        self.weights = nn.ParameterList(
            torch.randn(2, width, width, modes, modes, dtype=torch.cfloat) / width**2 for _ in range(3)
        )
        self.beside = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(3))
        self.project = nn.Sequential(nn.Conv2d(width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1))

    def forward(self, x: Tensor) -> Any:
        x, m = self.lift(x), self.modes
        for weight, beside in zip(self.weights, self.beside, strict=True):
            f = torch.fft.rfft2(x)
            out = torch.zeros_like(f)
            out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], weight[0])
            out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], weight[1])
            x = functional.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + beside(x))
        return self.project(x)


def fno() -> Built:
    def loss(model: nn.Module, batch: Any) -> Any:
        apart = (model(batch[0]) - batch[1]).flatten(1)
        return (torch.linalg.vector_norm(apart, dim=1) / torch.linalg.vector_norm(batch[1].flatten(1), dim=1)).mean()

    return FNO(), lambda n: (torch.randn(n, 3, 48, 48), torch.randn(n, 1, 48, 48)), loss


class NeRF(nn.Module):
    """Points along rays through an MLP with Fourier features, composed by transmittance (Mildenhall et al., 2020)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(63, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.two = nn.Sequential(nn.Linear(width + 63, width), nn.ReLU())
        self.density, self.colour = (
            nn.Linear(width, 1),
            nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 3)),
        )

    def forward(self, origin: Tensor, way: Tensor) -> Any:
        far = torch.linspace(2, 6, 32) + torch.rand(len(origin), 32) / 8
        points = origin[:, None] + way[:, None] * far[..., None]
        waves = points[..., None] * (2.0 ** torch.arange(10))
        x = torch.cat([points, waves.sin().flatten(2), waves.cos().flatten(2)], -1)
        h = self.two(torch.cat([self.one(x), x], -1))
        thick = functional.relu(self.density(h)[..., 0])
        gaps = torch.diff(far, append=far[:, -1:] + 1)
        alpha = 1 - torch.exp(-thick * gaps)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * through)[..., None] * self.colour(h).sigmoid()).sum(1)


def nerf() -> Built:
    return (
        NeRF(),
        lambda n: (torch.randn(64 * n, 3), torch.randn(64 * n, 3), torch.rand(64 * n, 3)),
        lambda model, b: functional.mse_loss(model(b[0], b[1]), b[2]),
    )


class KAN(nn.Module):
    """A cubic spline on each edge, its bases by recursion (Liu et al., 2024)."""

    def __init__(self, into: int, out: int, grid: int = 5, order: int = 3) -> None:
        super().__init__()
        self.order = order
        self.register_buffer("knots", torch.arange(-order, grid + order + 1) * 2 / grid - 1)
        self.base = nn.Parameter(torch.randn(out, into) / math.sqrt(into))
        self.spline = nn.Parameter(torch.randn(out, into, grid + order) / 10)

    def forward(self, x: Tensor) -> Any:
        at = x[..., None]
        t: Any = self.knots
        b = ((at >= t[:-1]) & (at < t[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (at - t[: -k - 1]) / (t[k:-1] - t[: -k - 1]) * b[..., :-1]
            b = left + (t[k + 1 :] - at) / (t[k + 1 :] - t[1:-k]) * b[..., 1:]
        return functional.linear(functional.silu(x), self.base) + functional.linear(
            b.flatten(1), self.spline.flatten(1)
        )


def kan() -> Built:
    return (
        nn.Sequential(KAN(64, 48), KAN(48, 32), KAN(32, 4)),
        lambda n: (torch.rand(n, 64) * 2 - 1, torch.randn(n, 4)),
        nn.SmoothL1Loss(),
    )


class Hyper(nn.Module):
    """A network that makes the weights of another, for each sample (Ha et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8 * 3 * 9 + 16 * 8 * 9))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor, about: Tensor) -> Any:
        n = len(x)
        one, two = self.maker(about).split([8 * 3 * 9, 16 * 8 * 9], 1)
        x = functional.conv2d(x.reshape(1, -1, *x.shape[2:]), one.reshape(8 * n, 3, 3, 3), padding=1, groups=n)
        x = functional.avg_pool2d(functional.relu(x), 2)
        x = functional.relu(functional.conv2d(x, two.reshape(16 * n, 8, 3, 3), padding=1, groups=n))
        return self.head(x.view(n, 16, -1).amax(-1))


def hyper() -> Built:
    return (
        Hyper(),
        lambda n: (torch.randn(n, 3, 32, 32), torch.randn(n, 16), torch.randint(10, (n,))),
        lambda model, b: functional.cross_entropy(model(b[0], b[1]), b[2]),
    )


class Equilibrium(nn.Module):
    """A fixed point without a graph, and one step with it (deep equilibrium, Bai et al., 2019)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.into, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(8, width)
        self.f, self.g = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 10)

    def _once(self, z: Tensor, x: Tensor) -> Any:
        return self.norm(torch.tanh(self.g(torch.relu(self.f(z))) + x))

    def forward(self, x: Tensor) -> Any:
        x = self.into(x)
        z = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(6):
                z = self._once(z, x)
        return self.head(self._once(z, x).mean((2, 3)))


def equilibrium() -> Built:
    return Equilibrium(), pictures(32), _CROSS


class Capsules(nn.Module):
    """Primary capsules and three rounds of routing by agreement (Sabour et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 32, 9), nn.Conv2d(32, 64, 9, 2)
        self.w = nn.Parameter(torch.randn(10, 288, 16, 8) / 10)

    @staticmethod
    def _squash(x: Tensor) -> Any:
        size = (x**2).sum(-1, keepdim=True)
        return x * size / ((1 + size) * torch.sqrt(size + 1e-8))

    def forward(self, x: Tensor) -> Any:
        u = self._squash(self.primary(torch.relu(self.conv(x))).view(len(x), 288, 8))
        votes = torch.einsum("jiod,nid->njio", self.w, u)
        logits = torch.zeros(votes.shape[:3])
        v = votes.sum(2)
        for _ in range(3):
            v = self._squash((logits.softmax(1)[..., None] * votes).sum(2))
            logits = logits + (votes * v[:, :, None]).sum(-1)
        return torch.linalg.vector_norm(v, dim=-1)


def capsules() -> Built:
    return Capsules(), pictures(28, channels=1), nn.MultiMarginLoss()


class PointNet(nn.Module):
    """Shared MLPs, a learned 3 x 3 transform and a maximum over points (Qi et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()

        def shared(*widths: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for a, b in itertools.pairwise(widths):
                layers += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]
            return nn.Sequential(*layers)

        self.turn, self.turned = shared(3, 32, 128), nn.Linear(128, 9)
        self.body, self.head = (
            shared(3, 64, 128, 256),
            nn.Sequential(nn.Linear(256, 64), nn.Dropout(), nn.Linear(64, 8)),
        )

    def forward(self, x: Tensor) -> Any:
        turn = self.turned(self.turn(x).max(2)[0]).view(-1, 3, 3) + torch.eye(3)
        return self.head(self.body(torch.bmm(turn, x)).max(2)[0])


def pointnet() -> Built:
    return (
        PointNet(),
        lambda n: (torch.randn(n, 3, 512), torch.randint(8, (n,))),
        nn.CrossEntropyLoss(label_smoothing=0.1),
    )


class Flow(nn.Module):
    """Affine couplings with 1 x 1 convolutions and their log-determinants (Glow, Kingma and Dhariwal, 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = nn.ParameterList(torch.linalg.qr(torch.randn(12, 12))[0] for _ in range(4))
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 12, 3, padding=1)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Any:
        x = functional.pixel_unshuffle(x, 2)
        total = x.new_zeros(len(x))
        for turn, net in zip(self.turns, self.nets, strict=True):
            x = functional.conv2d(x, turn[..., None, None])
            total = total + torch.linalg.slogdet(turn)[1] * x.shape[2] * x.shape[3]
            a, b = x.chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            scale = torch.sigmoid(scale + 2)
            x, total = torch.cat([a, b * scale + shift], 1), total + scale.log().flatten(1).sum(1)
        return ((x**2).flatten(1).sum(1) / 2 - total).mean()


def flow() -> Built:
    return Flow(), lambda n: torch.randn(n, 3, 32, 32), lambda model, b: model(b)


MODELS: dict[str, tuple[Callable[[], Built], int, str]] = {
    "mamba scan": (mamba, 24, "adamw"),
    "experts, top 2": (experts, 8, "adam"),
    "u-net 3-D": (unet3d, 4, "momentum"),
    "wavenet": (wavenet, 8, "adamw fused"),
    "gat": (gat, 16, "rmsprop"),
    "detr": (detector, 12, "adamw foreach"),
    "perceiver": (perceiver, 16, "nadam"),
    "fno": (fno, 8, "adam"),
    "nerf": (nerf, 16, "amsgrad"),
    "swin": (swin, 12, "adamw"),
    "conformer, ctc": (conformer, 10, "adafactor"),
    "rwkv": (rwkv, 16, "adagrad"),
    "kan": (kan, 256, "adadelta"),
    "hypernetwork": (hyper, 24, "sgd"),
    "equilibrium": (equilibrium, 48, "momentum fused"),
    "capsules": (capsules, 20, "adam"),
    "gru-d": (decaying, 128, "adamax"),
    "pointnet": (pointnet, 20, "radam"),
    "tokens dropped": (dropping, 14, "adamw"),
    "glow": (flow, 32, "rprop"),
}


def job(name: str) -> Job:
    """Return the training of a name, its weights drawn anew."""
    build, _, optimizer = MODELS[name]
    model, batch, loss = build()
    return job_of(model, OPTIMIZERS[optimizer](list(model.parameters())), batch, loss)
