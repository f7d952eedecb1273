"""What the tests of the hook need: C programs, a Python program, and the stock tools run with the hook in every way."""
