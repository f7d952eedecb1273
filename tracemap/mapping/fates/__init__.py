"""What became of each op, and how far the compiler's output still locates it."""
