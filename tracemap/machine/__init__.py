"""Machine code of a compiled module: ELF images, debug lines, instructions, loops, and estimates of time."""
