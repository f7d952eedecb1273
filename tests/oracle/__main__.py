"""Measures how right the map is: `python -m tests.oracle --seeds 200`, or one program with `--seed N`."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import count, islice

import click

from tests.documents import DOCS, write_part
from tests.oracle.compare import Result, TwinDiffers, all_differences
from tests.oracle.kernels import CompilerRejects
from tests.oracle.mixed import measure_any, text_of
from tests.oracle.table import misses, table


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=200, show_default=True, help="How many programs.")
@click.option("--seed-base", type=int, help="The first seed; drawn fresh and printed where not given.")
@click.option("--seed", type=int, help="Only this program: its text, and every difference.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Programs measured at a time.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(seeds: int, seed_base: int | None, seed: int | None, jobs: int, write_docs: bool) -> None:
    """Compare the maps of generated programs with what their kernels tell; status 1 where a target is missed."""
    if seed is not None:
        print(text_of(seed))
        _report(measure_any(seed), f"seed {seed}")
        return
    base = secrets.randbelow(1_000_000_000) if seed_base is None else seed_base
    print(f"seeds from {base}", file=sys.stderr)
    result, last = measure_many(base, seeds, jobs)
    text = _report(result, f"seeds {base} to {last}")
    if write_docs:
        write_part(DOCS / "accuracy.md", "accuracy", text)
    missed = misses(result)
    print("\n".join(missed), file=sys.stderr)
    sys.exit(1 if missed else 0)


def _report(result: Result, seeds: str) -> str:
    for line in all_differences(result):
        print(line, file=sys.stderr)
    text = table(result, seeds)
    print(text)
    return text


def measure_many(base: int, wanted: int, jobs: int) -> tuple[Result, int]:
    """The results of so many programs, and the last seed; what the compiler does not take is replaced by the next."""
    total, seeds, began = Result(), count(base), time.monotonic()
    last = base
    with ProcessPoolExecutor(jobs) as pool:
        while total.counts["programs"] < wanted:
            batch = list(islice(seeds, wanted - total.counts["programs"]))
            last = batch[-1]
            for result in _measured(pool, batch):
                total.add(result)
                done = total.counts["programs"]
                print(f"\r{done}/{wanted} programs, {time.monotonic() - began:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    total.differences.sort(key=lambda each: (each.seed, each.line))
    return total, last


def _measured(pool: ProcessPoolExecutor, seeds: list[int]) -> Iterator[Result]:
    futures = {pool.submit(measure_any, seed): seed for seed in seeds}
    for future in as_completed(futures):
        try:
            yield future.result()
        except (CompilerRejects, TwinDiffers) as error:
            print(f"\nseed {futures[future]} skipped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
