"""Time, memory and energy of one model or two by family of operators."""
