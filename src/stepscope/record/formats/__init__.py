"""Grammars of what tools and devices print, as pure functions of text; standard library only."""
