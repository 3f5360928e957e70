"""Processes that train under `stepscope run`: how a script is started, and how its children join."""
