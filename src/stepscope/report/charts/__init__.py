"""One file a chart: `build(...)` takes a frame that analysis made and gives an altair chart.

A chart is drawn in the light palette; `charts.svg` turns its colours into the page's variables, so that one
definition serves the page in light and dark, and figures on paper.
"""
