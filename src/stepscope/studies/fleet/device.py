"""The devices that a scheduler knows now, and questions to one of them: each a task that no measured run is beside."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError as FutureCancelled
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope import __version__
from stepscope.clock import monotonic_ns
from stepscope.errors import FleetError
from stepscope.studies.fleet import on_device
from stepscope.studies.fleet.worker import resource

if TYPE_CHECKING:
    from distributed import Client

_BOARD = "board:"
_ANSWERS_WITHIN_S = 30.0
_SCHEDULER_GONE = ("scheduler-connection-lost", "scheduler-restart")


class OtherVersion(FleetError):
    """A device has another Stepscope than this machine: what they measure could not be compared."""


class DeviceLost(Exception):
    """What was asked of a device will not be answered: it went away."""


class DeviceUnfit(Exception):
    """A device cannot do what it was asked, for a reason that is its own: a full disk, a broken installation."""


class SchedulerLost(Exception):
    """The scheduler went away; what the devices are doing goes on."""


@dataclass(frozen=True)
class Device:
    """A worker as the scheduler knows it; `address` is another one each time that it joins."""

    name: str
    board: str
    address: str


@dataclass(frozen=True)
class Met:
    """What a device says of itself, and how far its wall clock is ahead of ours: offset_s, right within within_s."""

    about: Mapping[str, Any]
    offset_s: float
    within_s: float


async def present(client: Client) -> list[Device]:
    """The devices that are there now; SchedulerLost where the scheduler does not say."""
    try:
        if client.scheduler is None:
            raise SchedulerLost("the connection to the scheduler is closed")
        seen = (await asyncio.wait_for(client.scheduler.identity(), _ANSWERS_WITHIN_S))["workers"]
    except (OSError, asyncio.TimeoutError) as error:
        raise SchedulerLost("the scheduler has gone away") from error
    return [
        Device(str(worker["name"]), name.removeprefix(_BOARD), address)
        for address, worker in seen.items()
        for name in worker["resources"]
        if name.startswith(_BOARD)
    ]


async def ask(client: Client, device: Device, function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of a function that is called on the device, after whatever is going on there."""
    from distributed import KilledWorker

    comm: Any = importlib.import_module("distributed.comm")  # it names its exports nowhere
    if client.status != "running":
        raise SchedulerLost("the scheduler has gone away")
    future: Any = client.submit(
        function, *arguments, workers=[device.address], allow_other_workers=False, pure=False,
        resources={resource(device.board): 1}, retries=0,
    )  # fmt: skip
    try:
        return await future
    except FutureCancelled as error:
        if getattr(error, "reason", None) in _SCHEDULER_GONE:
            raise SchedulerLost("the scheduler has gone away") from error
        raise DeviceLost(f"{device.name} went away") from error
    except (KilledWorker, comm.CommClosedError) as error:
        raise DeviceLost(f"{device.name} went away") from error
    except Exception as error:  # raised on the device, whatever it is
        raise DeviceUnfit(f"{device.name}: {type(error).__name__}: {error}") from error
    finally:
        future.release()


async def meet(client: Client, device: Device) -> Met:
    """What the device is, and how its clock differs; OtherVersion where it has not the Stepscope of this machine.

    Offset: F. Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989; the best of three.
    """
    about = await ask(client, device, on_device.about)
    there = about["versions"]["stepscope"]
    if there != __version__:
        said = f"{device.name} has Stepscope {there}, and this machine {__version__}"
        raise OtherVersion(said, "install the same version on both; stepscope fleet up checks it")
    tries = [await _clock(client, device) for _ in range(3)]
    offset_s, within_s = min(tries, key=lambda each: each[1])
    return Met(about, offset_s, within_s)


async def _clock(client: Client, device: Device) -> tuple[float, float]:
    """How far its clock is ahead of ours, and half of how long the question took, s."""
    asked_ns, here_ns = monotonic_ns(), on_device.clock_ns()
    there_ns = await ask(client, device, on_device.clock_ns)
    return offset(here_ns, there_ns, monotonic_ns() - asked_ns)


def offset(here_ns: int, there_ns: int, took_ns: int) -> tuple[float, float]:
    """(offset, half-width) in s from our clock when we asked, theirs when they answered, and the time in between."""
    return (there_ns - here_ns - took_ns / 2) / 1e9, took_ns / 2e9
