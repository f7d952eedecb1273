"""Page faults belong to the kernel that first writes a buffer.

A call's transient buffer is fresh memory: each of its pages faults once, at the first write to it. A kernel whose
result lies where nothing was written before therefore takes one fault for each page of it, which its IR tells.
"""

from __future__ import annotations

import math
import mmap
import re
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.support import Corpus, json_cli, run_cli
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.map.bundle import Bundle, load
from tracemap.map.model import Kernel

_STORE = re.compile(r"store_to_buffer .* : tensor<([0-9x]+)x(f32|i32)>")
# A page may be shared with a neighbour's buffer, at either end, and the kernel's own stack may grow by one.
SLACK = 2


def result_pages(bundle: Bundle, kernel: Kernel) -> int:
    """The pages of what a kernel writes."""
    sizes = [math.prod(map(int, shape.split("x"))) * 4 for shape, _ in _STORE.findall(bundle.kernel_text(kernel))]
    return sum(math.ceil(size / mmap.PAGESIZE) for size in sizes)


@pytest.mark.long
@pytest.mark.parametrize("model", ["jax_gpt2_4l", "hand_convnet"])
def test_faults_are_those_of_the_pages_first_written(model: str, built: Built, samples: Corpus, tmp_path: Path) -> None:
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook's library is not built: no C compiler when tracemap was installed")
    run = tmp_path / "run.parquet"
    once = ("--warmup", "0", "--iterations", "1", "--serial", "--counters", "page-faults")
    flags = samples.flag_files().get(model)
    given = ("--flagfile", flags) if flags else ()
    done = run_cli("record", built(model), *given, *once, "-o", run)
    if "[event-unavailable]" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    bundle = load(built(model))
    result = json_cli("attribute", run, "--map", built(model), "--rule", "root")
    faults = {each["site"]: each["metrics"]["page-faults"]["total"] for each in result["sites"]}
    (total,) = (metric for metric in result["metrics"] if metric["name"] == "page-faults")
    assert total["measured"] == total["attributed"] == sum(faults.values())
    writers = {site: count for site, count in faults.items() if count > SLACK}
    assert len(writers) >= 2
    by_op = {each["op"]: each["metrics"]["page-faults"]["attributed"] for each in result["ops"]}
    for site, count in writers.items():
        pages = result_pages(bundle, bundle.graph.kernel_by_name[bundle.graph.site_by_id[site].kernel])
        assert abs(count - pages) <= SLACK, (site, count, pages)
        root = bundle.graph.site_by_id[site].root
        assert root is not None
        assert by_op[root.op] >= count


def test_the_first_writer_is_the_first_kernel(built: Built, tmp_path: Path) -> None:
    """The first kernel of a call cannot find its buffer written before."""
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook's library is not built: no C compiler when tracemap was installed")
    run = tmp_path / "run.parquet"
    once = ("--warmup", "0", "--iterations", "1", "--serial", "--counters", "page-faults")
    done = run_cli("record", built("hand_convnet"), *once, "-o", run)
    if "[event-unavailable]" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    bundle = load(built("hand_convnet"))
    result = json_cli("attribute", run, "--map", built("hand_convnet"))
    first = next(each for each in result["sites"] if each["site"] == "site0")
    pages = result_pages(bundle, bundle.graph.kernel_by_name[bundle.graph.sites[0].kernel])
    assert pages == 16
    assert abs(first["metrics"]["page-faults"]["total"] - pages) <= SLACK
