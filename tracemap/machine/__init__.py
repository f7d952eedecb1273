"""The machine code of a compiled module: its ELF images, their debug lines, instructions and loops."""
