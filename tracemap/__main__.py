"""`python -m tracemap`: the same as the `tracemap` program."""

from tracemap.commands.start import main

if __name__ == "__main__":
    main()
