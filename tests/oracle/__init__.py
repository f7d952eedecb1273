"""An oracle for the map: programs whose ops carry fingerprints that survive compilation, so that where each op runs is
read off the kernels that the compiler made, without any location. `python -m tests.oracle --help` measures
`tracemap build` against it.
"""
