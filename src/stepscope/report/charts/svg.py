"""Draws a chart as SVG text whose colours are the page's CSS variables."""

from __future__ import annotations

import re
from typing import Any

import vl_convert

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import styled
from stepscope.report.page.reading import visible

_COLOUR = re.compile(r'"(#[0-9a-fA-F]{6})"')
_LONG_NUMBER = re.compile(r"(-?\d+\.\d\d)\d+")
_SIZE = re.compile(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"')
_HIDDEN_FRAME = re.compile(r'<path class="(?:background|foreground)"[^>]*d="(?:M0,0h0v0h0Z)?"[^>]*/>')
_VARIABLE = {value: f'"var(--{name})"' for name, value in LIGHT.items()}


def draw(chart: Any) -> str:
    """SVG of an altair chart; it scales to its place, and `aria-label`s carry what hovering shows."""
    svg = vl_convert.vegalite_to_svg(styled(chart).to_json(), allowed_base_urls=[])
    svg = _SIZE.sub(r"\1", svg, count=1)
    svg = _HIDDEN_FRAME.sub("", svg)
    svg = _COLOUR.sub(lambda match: _VARIABLE.get(match[1].lower(), match[0]), svg)
    return visible(_shorter(svg))


def _shorter(svg: str) -> str:
    """Two decimals of a pixel are enough; only tags are touched, never text."""
    parts = re.split(r"(<[^>]*>)", svg)
    return "".join(_trimmed(part) if part.startswith("<") else part for part in parts)


def _trimmed(tag: str) -> str:
    if 'aria-label="' in tag:
        head, label, tail = re.split(r'(aria-label="[^"]*")', tag, maxsplit=1)
        return _LONG_NUMBER.sub(r"\1", head) + label + _LONG_NUMBER.sub(r"\1", tail)
    return _LONG_NUMBER.sub(r"\1", tag)
