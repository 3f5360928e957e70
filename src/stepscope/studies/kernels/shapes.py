"""The kernels that are timed: an operation with all its sizes, from a sweep along axes or from a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stepscope.errors import UsageError

OPS = ("conv", "depthwise", "linear", "lstm", "attention", "batch_norm", "optimizer")
RULES = ("sgd", "momentum", "adam", "adamw")  # of the optimizer's update
AXES = {
    "conv": ("kernel", "batch", "channels", "size"),
    "depthwise": ("kernel", "batch", "channels", "size"),
    "linear": ("batch", "channels"),
    "lstm": ("batch", "channels", "size"),
    "attention": ("batch", "channels", "size"),
    "batch_norm": ("batch", "channels", "size"),
    "optimizer": ("parameters",),
}
_HEAD = 32  # channels of one head of attention, and the fewest


@dataclass(frozen=True)
class Kernel:
    """One operation. `sizes` is all that it needs; `place` where it lies in a sweep, empty for a shape of a model.

    count: how often a step of the model runs it.
    """

    op: str
    sizes: Mapping[str, Any]
    place: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1

    @property
    def id(self) -> str:
        """A name for files, the same for the same sizes."""
        said = (f"{name}{value}" for name, value in self.sizes.items())
        return "-".join((self.op, *said))

    @property
    def called(self) -> str:
        """What people call it."""
        of = self.sizes
        if self.place or "kernel_height" not in of:
            return f"{self.op} {', '.join(f'{name} {value}' for name, value in (self.place or of).items())}"
        kernel, image = f"{of['kernel_height']}x{of['kernel_width']}", f"{of['height']}x{of['width']}"
        rare = [f", {name} {of[name]}" for name in ("stride", "dilation", "groups") if of[name] > 1]
        rare = rare[:-1] if self.op == "depthwise" else rare  # its groups are its channels
        return f"{self.op} {kernel}, {of['inputs']} to {of['outputs']}, batch {of['batch']}, {image}{''.join(rare)}"


@dataclass(frozen=True)
class Sweep:
    """The axes; each op takes those it has. Every axis goes through its values with the others at their centre.

    The sizes of kernels are crossed with the batches, as in the second paper. `size` is the side of an image, or the
    length of a sequence; `channels` are features where there are no channels.
    """

    kernels: tuple[int, ...] = (1, 3, 5, 7, 9, 11)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    channels: tuple[int, ...] = (8, 16, 32, 64, 128)
    sizes: tuple[int, ...] = (8, 16, 32, 64)
    parameters: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def of(self, op: str) -> list[Kernel]:
        """The kernels of one op, each once."""
        found = {kernel.id: kernel for kernel in self._every(op)}
        return list(found.values())

    def _every(self, op: str) -> Iterator[Kernel]:
        if op == "optimizer":
            for rule in RULES:
                for count in self.parameters:
                    yield Kernel(op, {"rule": rule, "parameters": count}, {"rule": rule, "parameters": count})
            return
        along = {"kernel": self.kernels, "batch": self.batches, "channels": self.channels, "size": self.sizes}
        axes = {axis: along[axis] for axis in AXES[op]}
        centre = {axis: _middle(axis, values) for axis, values in axes.items()}
        places = [{**centre, axis: value} for axis, values in axes.items() for value in values]
        if "kernel" in axes:
            places += [{**centre, "kernel": k, "batch": b} for k in self.kernels for b in self.batches]
        for place in places:
            yield _BUILT[op](place)


QUICK = Sweep((1, 3, 5, 7), (1, 4, 16), (8, 32), (8, 16), (10_000, 100_000))


def wanted(ops: tuple[str, ...], sweep: Sweep) -> list[Kernel]:
    """All kernels of a sweep over these ops; UsageError where nothing is left of it."""
    found = [kernel for op in ops for kernel in sweep.of(op)]
    if not found:
        raise UsageError("there is no kernel to time", f"name one or more of: --ops {','.join(OPS)}")
    return found


def square(place: Mapping[str, int], groups: int = 1) -> dict[str, int]:
    """The sizes of a convolution that keeps the size of its image: as many channels out as in."""
    kernel, channels, size = place["kernel"], place["channels"], place["size"]
    return {
        "batch": place["batch"], "inputs": channels, "height": size, "width": size, "outputs": channels,
        "kernel_height": kernel, "kernel_width": kernel, "stride": 1, "padding_height": kernel // 2,
        "padding_width": kernel // 2, "dilation": 1, "groups": groups,
    }  # fmt: skip


def _conv(place: dict[str, int]) -> Kernel:
    return Kernel("conv", square(place), place)


def _depthwise(place: dict[str, int]) -> Kernel:
    return Kernel("depthwise", square(place, place["channels"]), place)


def _linear(place: dict[str, int]) -> Kernel:
    return Kernel("linear", {"batch": place["batch"], "inputs": place["channels"], "outputs": place["channels"]}, place)


def _lstm(place: dict[str, int]) -> Kernel:
    sizes = {"batch": place["batch"], "length": place["size"], "inputs": place["channels"], "hidden": place["channels"]}
    return Kernel("lstm", sizes, place)


def _attention(place: dict[str, int]) -> Kernel:
    heads = max(1, place["channels"] // _HEAD)
    sizes = {"batch": place["batch"], "heads": heads, "length": place["size"], "head": place["channels"] // heads}
    return Kernel("attention", sizes, place)


def _batch_norm(place: dict[str, int]) -> Kernel:
    size = place["size"]
    return Kernel(
        "batch_norm", {"batch": place["batch"], "channels": place["channels"], "height": size, "width": size}, place
    )


_BUILT = {
    "conv": _conv, "depthwise": _depthwise, "linear": _linear, "lstm": _lstm, "attention": _attention,
    "batch_norm": _batch_norm,
}  # fmt: skip


def _middle(axis: str, values: tuple[int, ...]) -> int:
    """Where an axis stands while another is gone through: 3 for kernels where it is asked for, else the middle."""
    return 3 if axis == "kernel" and 3 in values else values[len(values) // 2]
