"""Trainings with JAX in a process of their own, where torch cannot be imported: found.json says what each found."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tests.no_torch  # noqa: F401 - from here on an import of torch fails

import stepscope
from stepscope.record.jax.recorder import JaxRecorder

BATCH, SMALL, HEAVY = 64, 64, 640
Params = dict[str, Any]


def initial() -> Params:
    sizes = {"first": (SMALL, SMALL), "heavy_in": (SMALL, HEAVY), "heavy_out": (HEAVY, SMALL), "head": (SMALL, 10)}
    make = np.random.default_rng(0)
    params: Params = {
        name: {"w": jnp.asarray(make.normal(0, 0.05, size), jnp.float32), "b": jnp.zeros(size[1])}
        for name, size in sizes.items()
    }
    params["heavy"] = {"in": params.pop("heavy_in"), "out": params.pop("heavy_out")}
    return params


def dense(name: str, params: Params, x: jax.Array) -> jax.Array:
    with jax.named_scope(name):
        return jnp.tanh(jnp.matmul(x, params["w"]) + params["b"])


def forward(params: Params, x: jax.Array) -> jax.Array:
    x = dense("first", params["first"], x)
    with jax.named_scope("heavy"):
        x = dense("out", params["heavy"]["out"], dense("in", params["heavy"]["in"], x))
    return dense("head", params["head"], x)


def mean_square(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    made: jax.Array = jnp.mean((forward(params, x) - y) ** 2)
    return made


@jax.jit
def train_step(params: Params, x: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
    loss, gradients = jax.value_and_grad(mean_square)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def hashed(params: Params) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))).hexdigest()


class Training:
    """Steps on the same made-up batches each time."""

    def __init__(self) -> None:
        make = np.random.default_rng(1)
        self.params = initial()
        self.x, self.y = (jnp.asarray(make.random((BATCH, width)), jnp.float32) for width in (SMALL, 10))
        self.losses: list[float] = []

    def step(self, samples: int = BATCH) -> jax.Array:
        loss: jax.Array
        self.params, loss = train_step(self.params, self.x[:samples], self.y[:samples])
        self.losses.append(float(loss))
        return loss

    def found(self, **more: Any) -> dict[str, Any]:
        return {"hash": hashed(self.params), "losses": self.losses, **more}


def unprofiled(out: Path) -> dict[str, Any]:
    training = Training()
    for _ in range(40):
        training.step()
    return training.found()


def profiled(out: Path, **options: Any) -> dict[str, Any]:
    training = Training()
    with stepscope.profile(training.params, out=out, name="mlp", **options) as scope:
        for _ in range(40):
            scope.step(training.step(), samples=BATCH)
    return training.found(run=str(scope.path))


def waits(out: Path) -> dict[str, Any]:
    """Whether what a step computes is there once `scope.step` has returned, with a loss and without."""
    large = jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ x), x))
    x, ready = jnp.ones((400, 400)), []
    with stepscope.profile(x, out=out, record="none") as scope:
        for given in (True, False):
            result = large(x)
            scope.step(result if given else None)
            ready.append(result.is_ready())
    return {"ready": ready, "run": str(scope.path)}


def new_shapes(out: Path) -> dict[str, Any]:
    training = Training()
    with stepscope.profile(training.params, out=out, record="none") as scope:
        for step in range(8):
            scope.step(training.step(samples=32 if step == 6 else BATCH))
    return training.found(run=str(scope.path))


def evaluates(out: Path) -> dict[str, Any]:
    """An evaluation of other shapes, which compiles a function, between two steps."""
    training = Training()
    with stepscope.profile(training.params, out=out, record="none") as scope:
        for step in range(8):
            if step == 6:
                scope.pause()
                jax.jit(mean_square)(training.params, training.x[:32], training.y[:32]).block_until_ready()
                scope.resume()
            scope.step(training.step())
    return training.found(run=str(scope.path), compile_s=stepscope.Run(scope.path).meta["compile_s"])


def own_trace(out: Path) -> dict[str, Any]:
    """The training traces itself, in the middle of a window."""
    training = Training()
    with stepscope.profile(training.params, out=out, record="all") as scope:
        for step in range(8):
            if step == 5:
                with jax.profiler.trace(str(out / "own")):
                    training.step()
            scope.step(training.step())
    return training.found(run=str(scope.path), traced=len(list((out / "own").rglob("*.xplane.pb"))))


def failing(name: str) -> Callable[[Path], dict[str, Any]]:
    """A training in which this method of ours raises."""

    def training(out: Path) -> dict[str, Any]:
        plain = getattr(JaxRecorder, name)
        scope: dict[str, Any] = {}
        file = str(Path(stepscope.__file__).parent / "record" / "a_fault.py")
        source = "def broken(*args, **kwargs):\n    raise RuntimeError('a fault of ours, on purpose')\n"
        exec(compile(source, file, "exec"), scope)
        setattr(JaxRecorder, name, scope["broken"])
        try:
            return profiled(out)
        finally:
            setattr(JaxRecorder, name, plain)

    return training


TRAININGS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "profiled": profiled,
    "unprofiled": unprofiled,
    "waits": waits,
    "new_shapes": new_shapes,
    "evaluates": evaluates,
    "own_trace": own_trace,
    **{
        f"fault in {name}": failing(name)
        for name in ("wait_for_step", "before_step", "step_ends", "_flush_window", "_open_window", "model_rows")
    },
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {name: train(folder / name.replace(" ", "-")) for name, train in TRAININGS.items()}
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
