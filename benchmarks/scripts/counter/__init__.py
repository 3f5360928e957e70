"""What is put in front of a bare run to count its true steps; it knows nothing of Stepscope."""
