"""Damaged and hostile files: changes at random, to what tracemap reads, and the check that they end well.

`changes` makes the damage, `inputs` the good files, `readers` says how each kind of file is read, and `trying` runs
tries under a watchdog. A try ends well if the file is read or refused by an error of tracemap.
"""
