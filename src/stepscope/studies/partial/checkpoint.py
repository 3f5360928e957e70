"""Weights from a file of the user's: plain tensors, or refused. Nothing in the file is ever executed."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepscope.errors import UsageError
from stepscope.studies.partial.layers import layers

_WRAPPED = ("state_dict", "model_state_dict", "model")
_HINT = "save plain weights: torch.save(model.state_dict(), 'weights.pt')"
_LISTED = 5


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name; UsageError where the file holds anything but weights."""
    if not path.is_file():
        raise UsageError(f"there is no checkpoint '{path}'", "give the path of a file of weights: --checkpoint FILE")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch speaks of its own support; what is no file of weights is refused
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, zipfile.BadZipFile, OSError) as error:
        why = "it holds more than tensors, or no tensors at all" if _pickled(error) else str(error).split("\n")[0]
        raise UsageError(f"'{path}' is not a file of plain weights, so it was not loaded: {why}", _HINT) from error
    for name in _WRAPPED:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    named = isinstance(content, dict) and all(isinstance(name, str) for name in content)
    if not named or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise UsageError(f"'{path}' holds something else than tensors by name", _HINT)
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


def put_weights(model: nn.Module, weights: dict[str, Tensor], origin: str) -> str | None:
    """Load them into the model; a last layer of another size stays as it is, and is said. UsageError on others."""
    own = model.state_dict()
    groups = layers(model)
    last = set(list(groups.values())[-1]) if groups else set()
    other = {name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape}
    wrong = [
        *(f"lacks {name}" for name in sorted(own.keys() - weights.keys())),
        *(f"has {name}, which the model does not" for name in sorted(weights.keys() - own.keys())),
        *(f"{name} is {_shape(weights[name])}, not {_shape(own[name])}" for name in sorted(other - last)),
    ]
    if wrong:
        more = f" and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise UsageError(
            f"{origin} does not fit the model: {'; '.join(wrong[:_LISTED])}{more}", "give weights of the same model"
        )
    model.load_state_dict({name: tensor for name, tensor in weights.items() if name not in other}, strict=False)
    return f"the last layer is new: in {origin} it has another size" if other else None


def _pickled(error: Exception) -> bool:
    """Torch answers such files with ways to execute them: nothing to repeat to a user."""
    return isinstance(error, (pickle.UnpicklingError, EOFError)) or not str(error)


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
