"""The live view: reads what a running run appends to its folder, and draws it; nothing of it runs in the trainer.

Standard library and rich alone: beside a training on a small board there is no memory for tables.
"""
