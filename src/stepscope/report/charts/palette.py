"""The colours of page and charts, told apart in the common colour blindnesses (after Okabe and Ito, 2008).

A name is a CSS variable of the page. Charts use the light values; each value is unique, so that a drawn SVG can be
taken back to names.
"""

from __future__ import annotations

from stepscope.analysis.own_time import RESIDUAL
from stepscope.runfolder import CATEGORIES, PHASES

LIGHT = {
    "paper": "#fdfdfb",
    "panel": "#f4f4f0",
    "ink": "#1c2127",
    "muted": "#5d666f",
    "rule": "#dedfda",
    "grid": "#ebebe6",
    "forward": "#0067a6",
    "backward": "#d1570a",
    "optimizer": "#00866b",
    "data": "#a8518a",
    "other": "#8d959b",
    "residual": "#d3d6d4",
    "accent": "#0a5f99",
    "gap": "#efdcc3",
    "warn": "#a33a00",
    "held-parameter": "#2f4b7c",
    "held-buffer": "#8aa0c8",
    "held-gradient": "#b5482a",
    "held-optimizer": "#0b7a62",
    "held-input": "#9c4f8c",
    "held-saved": "#e0a030",
    "held-temporary": "#cf9a78",
    "held-workspace": "#7f6a9e",
    "held-other": "#aab0b4",
}
DARK = {
    "paper": "#14171a",
    "panel": "#1c2024",
    "ink": "#e8e9e6",
    "muted": "#9da5ac",
    "rule": "#33393f",
    "grid": "#262b30",
    "forward": "#5ab4e8",
    "backward": "#f0954c",
    "optimizer": "#3cc49f",
    "data": "#d991bf",
    "other": "#868e95",
    "residual": "#41484e",
    "accent": "#6cbcf0",
    "gap": "#4a3a26",
    "warn": "#ffa465",
    "held-parameter": "#7f9fd8",
    "held-buffer": "#a9bbe0",
    "held-gradient": "#e88a66",
    "held-optimizer": "#4cc7a4",
    "held-input": "#d692c4",
    "held-saved": "#f0bd5a",
    "held-temporary": "#ddb094",
    "held-workspace": "#b3a0d6",
    "held-other": "#6d757b",
}
PHASE = {**{phase: LIGHT[phase] for phase in PHASES}, RESIDUAL: LIGHT["residual"]}
HELD = {category: LIGHT[f"held-{category}"] for category in CATEGORIES}  # memory
