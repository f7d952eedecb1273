"""The kernel view in a real Chromium: line to ops to instructions and back, loops, events, ten thousand lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from selenium.webdriver import ActionChains, Chrome, Keys

from tests.attribution.test_kernel_lines import addresses_run
from tests.browser.conftest import Open, log, settle
from tests.browser.test_reports_browser import find, go, press, texts, view
from tests.builders import graph, op, site
from tests.conftest import Built
from tests.pages import build_page, render_page
from tests.support import page_data
from tracemap.attribution.attribute import Request, attribute
from tracemap.machine.code import instructions_of
from tracemap.machine.images import read_images
from tracemap.map.bundle import load
from tracemap.options.results import Rule
from tracemap.reports.html import write_page
from tracemap.reports.page.model import KernelPage, LoopRow
from tracemap.reports.page.source_tabs import kernels_of
from tracemap.runs.runfile import read_run

LINES = 10_000
HOSTILE = "26 spills\n<img src=x onerror=document.title='hit'></script><script>document.title='hit'</script>"
SELECTED = "#kernel-ir .kr.selected"


@pytest.fixture(scope="module")
def real(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a sample at every instruction of a matrix product with bias and activation."""
    folder = tmp_path_factory.mktemp("kernels")
    bundle = load(built("hand_mlp"))
    kernel = next(kernel for kernel in bundle.graph.kernels if "matmul" in kernel.name)
    (image,) = read_images(bundle.module_path)
    code = instructions_of(image, image.function_by_name[kernel.name])
    run = addresses_run(bundle, kernel.name, [i.address for i in code], [i.line for i in code], folder / "r.parquet")
    request = Request(bundle.graph, bundle.map_sha256, [read_run(run)], Rule.MEASURED, images=lambda: (image,))
    page = build_page(bundle.graph, attribute(request), bundle.source_text, kernels_of(bundle))
    write_page(render_page(page), folder / "real.html", force=False)
    return folder / "real.html"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel of ten thousand lines, as many instructions and three hundred loops."""
    map_ = graph((op(1, 1), op(2, 2)), (site(0, 1, 2, kernel="k"),))
    numbers = range(1, LINES + 1)
    kernel = KernelPage(
        name="k",
        sites=("site0",),
        lines=tuple(f"  %{number} = arith.addf %a, %b : vector<{number}xf32>" for number in numbers),
        ops={number: (f"op{1 + number % 2}",) for number in numbers},
        seen={"samples": {number: number for number in numbers}},
        code=tuple((f"{4 * number:x}", number, f"vaddps zmm{number % 32}, zmm1, zmm2") for number in numbers),
        seen_at={"samples": {number - 1: number for number in numbers}},
        loops=tuple(LoopRow(number - 1, number, 10, ("op1", "op2"), (1 + number,)) for number in range(300)),
        no_code="",
        remarks=((7, "regalloc", 2, HOSTILE), (9, "licm", 1, "hoisting add"), (0, "gvn", 1, "nowhere")),
    )
    page = build_page(map_, None, lambda _: "a\nb\n")
    page = structs.replace(page, data=structs.replace(page.data, kernels=(kernel,)))
    target = tmp_path_factory.mktemp("kernels") / "large.html"
    write_page(render_page(page), target, force=False)
    return target


@pytest.mark.long
def test_rows_fill_the_view_however_it_is_reached(open_page: Open, large: Path) -> None:
    browser = open_page(large, "#sites")
    find(browser, "#tab-sites").send_keys(Keys.ARROW_RIGHT)
    assert view(browser) == "kernels"
    height = browser.execute_script("return document.getElementById('kernel-ir').clientHeight")
    assert 18 * len(texts(browser, "#kernel-ir .kr")) >= height > 400


def lines_of_instructions(browser: Chrome) -> set[str]:
    """The lines of the IR that the chosen instructions are of."""
    return {text.strip("▏") for text in texts(browser, "#kernel-code .kr.selected .o")}


@pytest.mark.long
def test_a_line_leads_to_its_ops_and_instructions(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#kernels")
    assert view(browser) == "kernels"
    rows = texts(browser, "#kernel-ir .kr")
    product = next(number for number, text in enumerate(rows, 1) if "linalg.matmul" in text)
    go(browser, f"kernel0L{product}")
    assert "linalg.matmul" in find(browser, SELECTED).text
    assert len(texts(browser, "#kernel-ops button.on")) == 1
    lines = lines_of_instructions(browser)
    assert lines == {str(product)}
    assert not log(browser, "browser")


@pytest.mark.long
def test_an_instruction_leads_to_its_line(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#kernel0")
    line = browser.execute_script(
        "const row = [...document.querySelectorAll('#kernel-code .kr')].find((each) => "
        "!each.querySelector('.o').textContent.startsWith('–')); row.click(); "
        "return row.querySelector('.o').firstChild.textContent"
    )
    assert find(browser, SELECTED).text.split()[0] == line
    assert line in lines_of_instructions(browser)


@pytest.mark.long
def test_an_op_leads_to_its_lines_and_from_the_source_into_the_kernel(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#kernel0")
    button = browser.find_elements("css selector", "#kernel-ops button")[0]
    name = button.text.split()[0]
    button.click()
    related = texts(browser, "#kernel-ir .kr.related")
    assert related
    assert all(name in text for text in related)
    go(browser, name)
    assert view(browser) == "F0"
    inside = next(link for link in browser.find_elements("css selector", "#inspector a") if "dispatch" in link.text)
    inside.click()
    assert view(browser) == "kernels"
    assert [text.split()[0] for text in texts(browser, "#kernel-ops button.on")] == [name]


@pytest.mark.long
def test_remarks_stand_beside_their_line_as_plain_text(open_page: Open, large: Path) -> None:
    browser = open_page(large, "#kernel0")
    shown = texts(browser, "#kernel-remarks li")
    assert [text.split(":")[0] for text in shown] == ["line 7 regalloc", "line 9 licm", "gvn"]
    assert HOSTILE.split("\n")[1] in shown[0]
    assert shown[0].endswith("(2 times)")
    assert not browser.find_elements("css selector", "#kernel-remarks img, #kernel-remarks script")
    assert "hit" not in browser.title
    assert [text.split()[0] for text in texts(browser, "#kernel-ir .kr.noted")] == ["7", "9"]
    browser.find_elements("css selector", "#kernel-remarks button")[1].click()
    assert find(browser, SELECTED).text.split()[0] == "9"
    assert [text.split(":")[0] for text in texts(browser, "#kernel-remarks li")] == ["line 9 licm"]
    go(browser, "kernel0L8")
    assert find(browser, "#kernel-remarks").text == "No remarks on the selected lines."
    assert not log(browser, "browser")


def test_loops_are_a_tree_with_their_ops(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#kernel0")
    loops = browser.find_elements("css selector", "#kernel-loops button")
    assert loops
    assert "instructions: op" in loops[0].text
    loops[-1].click()
    assert texts(browser, "#kernel-loops button.on")
    assert texts(browser, "#kernel-ir .kr.related")


def test_heat_is_what_was_seen(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#kernel0")
    data = page_data(real.read_text(encoding="utf-8"))
    total = sum(data["kernels"][0]["seen"]["samples"].values())
    find(browser, "#kernel-ir .kr .v[title]")  # waits for what is drawn; read at once, for it may be drawn again
    script = "return [...document.querySelectorAll('#kernel-ir .kr .v[title]')].map(row => row.title)"
    shown = sum(int(str(title).partition(" ")[0]) for title in browser.execute_script(script))
    assert 0 < shown <= total
    assert find(browser, "#kernel-event").get_attribute("value") == "samples"
    note = "Shares show where time was spent; removing an op may save less."
    assert note in find(browser, ".kernel-bar").text


@pytest.mark.long
def test_shares_of_instructions_and_loops_are_percentages_of_the_kernel(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#kernel0")
    seen = page_data(real.read_text(encoding="utf-8"))["kernels"][0]["seen"]["samples"]
    each = f"{100 / sum(seen.values()):.1f} %"  # every instruction has one sample
    assert set(texts(browser, "#kernel-code .kr:not(.heads) .v")) == {each}
    loops = texts(browser, "#kernel-loops tbody td.num")
    assert loops
    assert all(text.endswith(" %") and 0 < float(text[:-2]) < 100 for text in loops)
    titles = "return [...document.querySelectorAll('.heads b, #kernels th')].map((cell) => cell.title)"
    assert all(browser.execute_script(titles))


def test_an_op_has_one_colour_in_ir_code_and_list(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#kernel0")
    script = """
        const rows = (pane) => [...document.querySelectorAll(pane + " .kr.banded")];
        const band = (row) => getComputedStyle(row).getPropertyValue("--band").trim();
        const textOf = (row, cell) => row.querySelector(cell).firstChild?.textContent;
        const ofLine = Object.fromEntries(rows("#kernel-ir").map((row) => [textOf(row, ".n"), band(row)]));
        const op = document.querySelector("#kernel-ops [data-op]").dataset.op;
        const own = rows("#kernel-ir").filter((row) => textOf(row, ".o") === op);
        const colour = band(document.querySelector("#kernel-ops .band"));
        const code = rows("#kernel-code");
        const asLine = code.every((row) => ofLine[textOf(row, ".o")] === band(row));
        return [code.length, asLine, own.length, own.every((row) => band(row) === colour)];
    """
    instructions, same_as_line, lines, same_as_list = browser.execute_script(script)
    assert instructions
    assert lines
    assert same_as_line
    assert same_as_list


@pytest.mark.long
def test_panes_have_handles_for_pointer_and_keys(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#kernel0")
    width = "return document.getElementById('kernel-ir').clientWidth"
    before = browser.execute_script(width)
    handle = find(browser, ".kernel-grid .splitter")
    assert handle.get_attribute("role") == "separator"
    assert handle.get_attribute("aria-orientation") == "vertical"
    handle.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert browser.execute_script(width) == before - 48
    ActionChains(browser).drag_and_drop_by_offset(handle, 100, 0).perform()
    assert abs(browser.execute_script(width) - (before + 52)) <= 1
    assert int(str(handle.get_attribute("aria-valuenow"))) == browser.execute_script(width)
    handle.send_keys(Keys.HOME)
    assert browser.execute_script(width) == before
    height = "return document.getElementById('kernel-ir').clientHeight"
    size = {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        settle(browser)
        assert handle.get_attribute("aria-orientation") == "horizontal"
        before = browser.execute_script(height)
        handle.send_keys(Keys.ARROW_DOWN)
        assert browser.execute_script(height) == before + 24
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert view(browser) == "kernels"


def test_keys_walk_the_lines(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#kernel0")
    browser.execute_script("document.getElementById('kernel-ir').focus()")
    press(browser, "\ue015", "\ue015")  # arrow down
    assert find(browser, SELECTED).text.split()[0] == "2"


@pytest.mark.long
def test_ten_thousand_lines_are_never_all_in_the_document(open_page: Open, large: Path) -> None:
    browser = open_page(large, "#kernel0L9000")
    assert "%9000 =" in find(browser, SELECTED).text
    assert len(browser.find_elements("css selector", ".kr")) < 400
    browser.execute_script("document.getElementById('kernel-ir').scrollTop = 5000 * 18")
    assert "%5001 =" in find(browser, "#kernel-ir").text
    assert len(browser.find_elements("css selector", ".kr")) < 400
    browser.execute_script("document.querySelector('#kernel-code .kr').click()")
    assert len(browser.find_elements("css selector", SELECTED)) == 1
    assert not log(browser, "browser")


def test_a_page_without_kernels_has_no_such_view(open_page: Open, tmp_path: Path) -> None:
    write_page(render_page(build_page(graph((op(1, 1),)), None, lambda _: "a\n")), tmp_path / "p.html", force=False)
    browser = open_page(tmp_path / "p.html")
    assert not browser.find_elements("css selector", "#kernels, #tab-kernels")
    assert not log(browser, "browser")
