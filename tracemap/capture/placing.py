"""Samples that say how far behind a symbol they lie find their place in the bundle's machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.machine.images import Image
from tracemap.machine.linked import spots_at
from tracemap.machine.symbols import NOWHERE, addresses_at, symbol_places
from tracemap.measurements.columns import CODE_OFFSET
from tracemap.measurements.model import SAMPLES, Run
from tracemap.measurements.runfile import with_events
from tracemap.measurements.sql import open_database, table_of
from tracemap.units import plural

if TYPE_CHECKING:
    import duckdb

# Of a symbol that several executables have, nothing tells which of them it is.
_FOUND: Final = f"""
CREATE TEMP TABLE code_found AS
SELECT DISTINCT kernel, {CODE_OFFSET}, image, place + {CODE_OFFSET} AS place
FROM {{rows}} JOIN (SELECT kernel, any_value(image) AS image, any_value(place) AS place
                    FROM code_symbols GROUP BY kernel HAVING count(*) = 1) USING (kernel)
WHERE {CODE_OFFSET} BETWEEN 0 AND {1 << 40}
"""
_PLACED: Final = f"""
SELECT event.* EXCLUDE ({CODE_OFFSET}, step, address)
    REPLACE (CASE WHEN spot.place IS NULL THEN event.kernel ELSE spot.function END AS kernel), spot.step, spot.address
FROM {{rows}} AS event LEFT JOIN code_spots AS spot
    ON spot.kernel = event.kernel AND spot.{CODE_OFFSET} = event.{CODE_OFFSET} ORDER BY ALL
"""
# Named after a kernel that the bundle has elsewhere, or after a symbol that it does not have.
_ASTRAY: Final = f"""
SELECT coalesce(sum({SAMPLES}), 0) FROM {{rows}} AS event LEFT JOIN code_spots AS spot
    ON spot.kernel = event.kernel AND spot.{CODE_OFFSET} = event.{CODE_OFFSET}
WHERE event.kernel IS NOT NULL AND (spot.place IS NULL OR (
    event.kernel IN (SELECT function FROM code_functions) AND spot.function IS DISTINCT FROM event.kernel))
"""


def placed(run: Run, images: Callable[[], Sequence[Image]], folder: Path) -> Run:
    """A run whose rows of steps have kernels, addresses and lines; itself, where it has none that lack them.

    Args:
        run: the run.
        images: reads the machine code of the bundle's module.
        folder: where the table is put; it is made, and must stay as long as the run.

    Raises:
        ModuleInvalid: the machine code cannot be read.
    """
    if CODE_OFFSET not in run.columns or run.format != "parquet":
        return run
    rows = table_of("read_parquet", run.table)
    with open_database() as connection:
        _find_spots(connection, rows, images())
        ((astray,),) = connection.execute(_ASTRAY.format(rows=rows)).fetchall()
        header = run.header
        if astray:
            text = (
                f"{plural(int(astray), 'sample')} are of machine code that the bundle does not have: the program was "
                "compiled otherwise"
            )
            header = structs.replace(header, diagnostics=(*header.diagnostics, Diagnostic("samples-astray", text)))
        return with_events(run, header, connection.sql(_PLACED.format(rows=rows)), folder)


def _find_spots(connection: duckdb.DuckDBPyConnection, rows: str, images: Sequence[Image]) -> None:
    """Make `code_spots`: what lies at each place that rows name, and `code_functions`, the names of functions."""
    symbols = [(name, number, at) for number, image in enumerate(images) for name, at in symbol_places(image).items()]
    functions = [(function.name,) for image in images for function in image.functions]
    connection.execute("CREATE TEMP TABLE code_symbols (kernel VARCHAR, image BIGINT, place BIGINT)")
    connection.execute("CREATE TEMP TABLE code_functions (function VARCHAR)")
    for table, values in (("code_symbols", symbols), ("code_functions", functions)):
        if values:
            marks = ", ".join("?" for _ in values[0])
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    connection.execute(_FOUND.format(rows=rows))
    columns = "image BIGINT, place BIGINT, address BIGINT, step BIGINT, function VARCHAR"
    connection.execute(f"CREATE TEMP TABLE code_lines ({columns})")
    for number, image in enumerate(images):
        _add_lines(connection, number, image)
    spots = "SELECT * FROM code_found JOIN code_lines USING (image, place)"
    connection.execute(f"CREATE TEMP TABLE code_spots AS {spots}")


def _add_lines(connection: duckdb.DuckDBPyConnection, number: int, image: Image) -> None:
    """Add what lies at the places of one image."""
    import numpy as np

    query = f"SELECT DISTINCT place FROM code_found WHERE image = {number} ORDER BY place"
    places = connection.execute(query).fetchnumpy()["place"].astype(np.int64)
    spots = spots_at(image, addresses_at(image, places))
    columns = {"place": places, "address": spots.addresses, "step": spots.lines, "number": spots.numbers}
    connection.register("code_of_image", columns)
    connection.execute("CREATE OR REPLACE TEMP TABLE names_of_image (number BIGINT, function VARCHAR)")
    if spots.functions:
        names = [(place, function.name) for place, function in enumerate(spots.functions)]
        connection.executemany("INSERT INTO names_of_image VALUES (?, ?)", names)
    told = {"address": f"address <> {NOWHERE}", "step": "function IS NOT NULL"}
    inside = ", ".join(f"CASE WHEN {where} THEN {name} END" for name, where in told.items())
    known = "code_of_image LEFT JOIN names_of_image USING (number)"
    connection.execute(f"INSERT INTO code_lines SELECT {number}, place, {inside}, function FROM {known}")
    connection.unregister("code_of_image")
