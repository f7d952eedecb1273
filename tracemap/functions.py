"""The functions of a module, as the runtime's tools name and call them: a map keeps them, a recording calls one."""

from __future__ import annotations

from tracemap.codec import Record


class Argument(Record, frozen=True):
    """An argument of an entry point: its declared type, and whether it decides how often a loop runs."""

    name: str
    type: str
    loop_bound: bool


class Function(Record, frozen=True):
    """An entry point of the module, as the runtime's tools name it."""

    name: str
    arguments: tuple[Argument, ...]
