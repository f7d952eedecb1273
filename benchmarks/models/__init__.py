"""Networks of any size, as text for the compiler and as numpy: what is measured, and what it should compute."""
