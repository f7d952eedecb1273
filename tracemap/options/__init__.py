"""What each command can be asked, by what it is about; its help, the Python API and the requests are made of it."""
