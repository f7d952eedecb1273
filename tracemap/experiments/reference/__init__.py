"""What a kernel should compute, found by numpy from the kernel's IR before code generation."""
