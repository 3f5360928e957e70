"""Where time, memory and energy of a training go by kind of operation, for one model or two side by side."""
