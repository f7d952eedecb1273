"""What each command can be asked: one file per command; its help, the Python API and the requests are made of it."""
