"""Charts by topic: each `build_...` takes a frame that analysis made and gives an altair chart.

A chart is drawn in the light palette; `style.draw_svg` turns its colours into the page's variables, so that one
definition serves the page in light and dark, and figures on paper.
"""
