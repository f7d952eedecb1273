"""A week of nightly recordings that nobody made: one real run, told seven times over by machines of two kinds.

    python fake_week.py RUN.parquet WEEK [NIGHTS]

writes into the folder WEEK a run for each night and host. Each has the events of the real one, longer or shorter by what
machines and nights commonly differ by; since the middle of the week the dearest kernel takes 12 % longer on one kind of
processor, which is what `tracemap store` has to find. Only what docs/formats.md says of runs is used here: a Parquet file whose
key-value metadata has the header.
"""

import datetime
import json
import random
import sys
from pathlib import Path

import duckdb

PROCESSORS = {"Fictional Alpha 7313": ["a1", "a2"], "Fictional Beta 8481C": ["b1", "b2"]}
MONDAY = datetime.date(2026, 11, 16)
SLOWER_ON, SLOWER_BY = "Fictional Beta 8481C", 1.12


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def header_of(run: Path) -> dict:
    ((value,),) = duckdb.execute(
        f"SELECT value FROM parquet_kv_metadata({literal(str(run))}) WHERE key = 'tracemap'"
    ).fetchall()
    return json.loads(value)


def dearest_kernel(run: Path) -> str:
    query = f"SELECT kernel FROM {literal(str(run))} WHERE kind = 'dispatch' GROUP BY 1 ORDER BY sum(cpu_ns) DESC LIMIT 1"
    return duckdb.execute(query).fetchone()[0]


def tell(run: Path, header: dict, machine: dict, factors: tuple[float, float, float], kernel: str, target: Path) -> None:
    """Write the run as another machine might have recorded it; `factors`: of all, of how calls differ, of one kernel."""
    of_all, spread, of_kernel = factors
    told = json.dumps(header | {"machine": machine, "bundle": None})
    factor = (
        f"{of_all} * (1 + {spread} * (hash(start_ns, {machine['recorded_ns']}) % 1000 / 1000.0 - 0.5)) "
        f"* CASE WHEN kernel = {literal(kernel)} THEN {of_kernel} ELSE 1 END"
    )
    times = ", ".join(f"CAST({name} * {factor} AS BIGINT) AS {name}" for name in ("duration_ns", "cpu_ns"))
    duckdb.execute(
        f"COPY (SELECT * REPLACE ({times}) FROM {literal(str(run))}) TO {literal(str(target))} "
        f"(FORMAT parquet, KV_METADATA {{tracemap: {literal(told)}}})"
    )


def main(run: Path, week: Path, nights: int = 7) -> None:
    slower_since = nights // 2
    week.mkdir(parents=True, exist_ok=True)
    header, kernel, chance = header_of(run), dearest_kernel(run), random.Random(1)
    for model, hosts in PROCESSORS.items():
        of_model = chance.uniform(0.8, 1.2)
        for host in hosts:
            of_host = chance.gauss(1, 0.03)
            for night in range(nights):
                day = MONDAY + datetime.timedelta(days=night)
                began = datetime.datetime(day.year, day.month, day.day, 2, 30, tzinfo=datetime.UTC)
                recorded_ns = (int(began.timestamp()) + chance.randrange(3600)) * 1_000_000_000
                machine = {"host": host, "cpu_model": model, "processors": 16, "recorded_ns": recorded_ns}
                slower = SLOWER_BY if night >= slower_since and model == SLOWER_ON else 1
                factors = (of_model * of_host * chance.gauss(1, 0.01), 0.05, slower * chance.gauss(1, 0.005))
                tell(run, header, machine, factors, kernel, week / f"{day}-{host}.parquet")
    runs, since = nights * sum(map(len, PROCESSORS.values())), MONDAY + datetime.timedelta(days=slower_since)
    print(f"{runs} runs in {week}; slower since {since}: {kernel}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]), *map(int, sys.argv[3:]))
