"""Train a small network with JAX and record it: python examples/train_jax.py, then stepscope report last."""

import jax
import jax.numpy as jnp

import stepscope


def dense(name, params, x):
    with jax.named_scope(name):  # a layer of the report
        return jax.nn.relu(x @ params["w"] + params["b"])


def loss_of(params, x, y):
    for name, layer in params.items():
        x = dense(name, layer, x)
    return jnp.mean((x - y) ** 2)


@jax.jit
def train_step(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), loss


sizes = {"first": (256, 512), "second": (512, 512), "third": (512, 10)}
keys = jax.random.split(jax.random.key(0), len(sizes))
params = {
    name: {"w": 0.05 * jax.random.normal(key, size), "b": jnp.zeros(size[1])}
    for key, (name, size) in zip(keys, sizes.items(), strict=True)
}
x, y = jax.random.normal(jax.random.key(1), (64, 256)), jnp.ones((64, 10))

with stepscope.profile(params, out="runs", name="mlp") as scope:
    for _ in range(300):
        params, loss = train_step(params, x, y)
        scope.step(loss, samples=64)  # the step ends when its loss is computed
