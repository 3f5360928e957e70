"""A loop that tells `stepscope.profile` of its steps by every method of the scope; without PROFILED nobody listens."""

import contextlib
import os
import sys
from typing import Any

import torch
from torch import nn

if os.environ.get("PROFILED"):
    import stepscope

    scoped: Any = stepscope.profile
else:

    class _Deaf:
        def __getattr__(self, _: str) -> Any:
            return lambda *_, **__: contextlib.nullcontext()

    @contextlib.contextmanager
    def scoped(*_: Any, **__: Any) -> Any:
        yield _Deaf()


say = sys.stdout.write
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
try:
    with scoped(model, optimizer, out="../out", record="all", memory="all") as scope:
        for number in range(14):
            with scope.inside(model[0]):
                hidden = model[0].forward(torch.randn(8, 4))
            loss = model[2](model[1](hidden)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scope.step(loss, samples=8)
            if number % 4 == 3:
                scope.pause()
                with torch.no_grad():
                    say(f"{number} {model(torch.ones(1, 4)).item()}\n")
                scope.resume()
            if number == 12:
                scope.note("a-note", "of the training's")
                scope.update(of_the_training=True)
                raise LookupError("of the training's own")
except LookupError as error:
    say(f"{type(error).__name__} {error} {error.__context__}\n")
with scoped(out="../out", record="every:3") as scope:
    for _ in range(5):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        scope.step()
    scope.close("failed", "says the training")
torch.save(model.state_dict(), "weights.pt")
