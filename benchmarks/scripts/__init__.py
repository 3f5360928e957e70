"""Public training programs, unmodified, bare and under `stepscope run`: python -m benchmarks.scripts FOLDER."""
