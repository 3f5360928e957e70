"""Where each board has its files: one file a family; the folder is searched by the boards' names."""

from __future__ import annotations

from stepscope.simulate.layouts import gpu, jetson, laptop
from stepscope.simulate.layouts.site import Build

BUILDS: dict[str, Build] = {**jetson.BUILDS, **laptop.BUILDS, **gpu.BUILDS}
