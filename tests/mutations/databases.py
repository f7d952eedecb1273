"""Databases for many tries: emptied and handed on, because to open one takes longer than to read a damaged file."""

from __future__ import annotations

import re
from typing import Any

import duckdb

_OPEN = duckdb.connect
_MADE = re.compile(r"\s*CREATE (?:OR REPLACE )?(MACRO|VIEW|TABLE) (\w+)")
_SET = re.compile(r"\s*SET (\w+)")
_STAYS = re.compile(r"\s*(ATTACH|USE|CREATE (?!(OR REPLACE )?(MACRO|VIEW|(TEMP )?TABLE) ))")
"""What is not undone here; a database that was told it is not handed on."""
_TRIES_OF_ONE = 200

_empty: list[_Database] = []


def hand_on_databases() -> None:
    """From now on, `duckdb.connect()` in this process gives one that an earlier user has closed, if there is any.

    A user has a connection of its own, with which its temporary tables and its own settings go.
    """
    duckdb.connect = _connect  # type: ignore[assignment]  # all that tracemap calls with is no argument


def _connect() -> _Handed:
    return _Handed(_empty.pop() if _empty else _Database())


class _Database:
    """One that is handed on."""

    def __init__(self) -> None:
        self.connection = _OPEN(config={"threads": 1})  # others work beside; rows of a try are one thread's anyway
        self._undo: dict[str, None] = {}
        self._tries = 0
        self._stays = False

    def told(self, text: str) -> None:
        """Note how to undo a statement, whether or not it fails."""
        if made := _MADE.match(text):
            self._undo[f"DROP {made[1]} IF EXISTS {made[2]}"] = None
        elif setting := _SET.match(text):
            self._undo[f"RESET {setting[1]}"] = None
        elif _STAYS.match(text):
            self._stays = True

    def hand_on(self) -> None:
        """Empty it for the next user; one that cannot be emptied, or that answers nothing any more, is closed."""
        self._tries += 1
        try:
            if self._stays or self._tries > _TRIES_OF_ONE:
                raise duckdb.Error
            for statement in reversed(self._undo):
                self.connection.execute(statement)
            assert self.connection.execute("SELECT 1").fetchall() == [(1,)]
        except duckdb.Error:
            self.connection.close()
        else:
            self._undo.clear()
            _empty.append(self)


class _Handed:
    """A connection of one user."""

    def __init__(self, database: _Database) -> None:
        self._database: _Database | None = database
        self._cursor = database.connection.cursor()

    def execute(self, query: str, *more: Any) -> Any:  # noqa: ANN401 - as DuckDB's
        """As DuckDB's, and noted."""
        if self._database:
            self._database.told(query)
        return self._cursor.execute(query, *more)

    def close(self) -> None:
        """As DuckDB's; the database goes on to the next."""
        self._cursor.close()
        database, self._database = self._database, None
        if database:
            database.hand_on()

    def __enter__(self) -> _Handed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as DuckDB's
        return getattr(self._cursor, name)
