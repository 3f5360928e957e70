"""The colours of page and charts, told apart in the common colour blindnesses (after Okabe and Ito, 2008).

A name is a CSS variable of the page. Charts use the light values; each value is unique, so that a drawn SVG can be
taken back to names.
"""

from __future__ import annotations

from stepscope.analysis.own_time import RESIDUAL
from stepscope.runfolder import PHASES

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
}
PHASE = {**{phase: LIGHT[phase] for phase in PHASES}, RESIDUAL: LIGHT["residual"]}
