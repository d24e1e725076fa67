"""The report about paths: findings first, all pictures and tables, nothing from outside that runs, and it fits."""

import shutil

import pytest

from kit import paths_tables
from kit.html_reader import Reader
from rankscope.errors import ConfigError
from rankscope.report import paths_page
from rankscope.report.paths_tables import MOST_ROWS, other_tables, table_of
from rankscope.results import Table

COMMAND = f"rankscope paths {paths_tables.HOSTILE}"


def page_of(table, **more):
    return paths_page(table, **({"title": "Paths of a model", "command": "rankscope paths gpt2"} | more))


def with_sections(table, **sections):
    kept = {name: value for name, value in (table.sections | sections).items() if value is not None}
    return Table(frame=table.frame, sections=kept, provenance=table.provenance)


def test_findings_come_first_and_everything_follows_in_order():
    read = Reader(page_of(paths_tables.gpt2()))
    assert read.open == []
    parts = [
        "rankscope paths Paths of a model 12 layers of 12 heads float64 4 texts of 64 tokens", *paths_tables.WORDS,
        "paths 23,298,085,122,481", "11.08 of 12", "Share of the output", "All lengths as a table",
        "One cell per head, first layer at the top", "The list is exact: no other path is larger.", "Pairs of heads",
        "Where paths start",
        "differs from the network's own forward pass by 3.1e-15 (allowed: 1e-10), relative", "Configuration",
        "Made with", "Made by rankscope paths gpt2",
    ]  # fmt: skip
    places = [read.words.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_tables_hold_every_length_path_and_source():
    table = paths_tables.gpt2()
    words = Reader(page_of(table)).words
    for entry in table.sections["spectrum"]:
        assert f"{entry['paths']:,}" in words
    for kind in ("input", "value bias", "output bias", "mlp bias", "norm bias"):
        assert kind in words
    assert "4 3 17.4 13.9 0.258% L6 h4 › L10 h4 › L11 h1" in words  # noqa: RUF001


@pytest.mark.parametrize("name", list(paths_tables.TABLES))
def test_every_kind_of_table_makes_a_whole_page(name):
    table = paths_tables.TABLES[name]()
    text = page_of(table)
    read = Reader(text)
    assert read.open == []
    assert read.handlers == []
    assert {tag for tag, _ in read.elements}.isdisjoint({"script", "img", "iframe", "object", "form"})
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in read.of("a"):
        assert link["href"][1:] in ids
    assert "default-src 'none'" in read.of("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]


def test_names_from_outside_stay_text():
    text = page_of(paths_tables.hostile(), title=paths_tables.HOSTILE, command=COMMAND)
    assert "<script" not in text
    assert "onerror=alert(2)>" not in text.replace("&gt;", "")
    assert Reader(text).words.count("alert(1)") >= 6


def test_pictures_without_a_section_are_left_out():
    gone = dict.fromkeys(("heads", "top", "pairs", "sources", "finding", "identity"))
    bare = with_sections(paths_tables.gpt2(), **gone)
    read = Reader(page_of(bare, command=""))
    headings = [attributes.get("id", "") for name, attributes in read.elements if name == "h2"]
    assert headings == ["lengths", "identity", "provenance"]
    assert "The table does not say how far the sum" in read.words
    with pytest.raises(ConfigError, match="section 'spectrum'"):
        page_of(with_sections(bare, spectrum=None))


def test_costs_of_enumeration_are_said_whatever_their_size():
    identity = {
        "relative_error": 2e-16, "allowed": 1e-10, "holds": True, "block_passes": 78,
        "block_passes_by_enumeration": 96 * 97**96, "final_norm": False, "mean_length": None,
    }  # fmt: skip
    words = Reader(page_of(with_sections(paths_tables.small(), identity=identity))).words
    assert "It took 78 passes through a block; one path after the other would take 5.2e192 passes" in words
    assert "final norm no" in words
    assert "mean length unknown" in words


def test_an_identity_that_does_not_hold_is_alarming():
    table = paths_tables.gpt2()
    off = with_sections(table, identity=table.sections["identity"] | {"holds": False, "relative_error": 0.3})
    assert 'class="verdict bad"' in page_of(off)
    assert 'class="verdict found"' in page_of(table)


def test_other_sections_are_shown_as_tables():
    about = {"length": 2, "mode": "isolated", "definition": "gap[frobenius]"}
    row = about | {"mean": 0.25, "paths": 10**20, "exact": False}
    table = with_sections(paths_tables.small(), gaps=[row], samples=[], pruning="none")
    found = other_tables(table.sections)
    assert [name for name, _, _ in found] == ["Frozen against re-run"]
    words = Reader(page_of(table)).words
    assert "2 isolated gap[frobenius] 0.25 1.0e20 no" in words


def test_pruning_is_a_table_of_methods():
    curves = [
        {"method": "paths", "removed": [0, 2], "lost": [0.0, 0.19], "spread": [0.0, 0.0]},
        {"method": "<random>", "removed": [0, 2], "lost": [0.0, 0.5], "spread": [0.0, 0.04]},
    ]
    table = with_sections(paths_tables.small(), pruning={"of": "change of the output", "curves": curves})
    words = Reader(page_of(table)).words
    assert "What is lost (change of the output) when heads are removed" in words
    assert "heads removed paths <random> 0 0 0 2 0.19 0.5 ± 0.04" in words
    assert other_tables({"pruning": {"curves": []}}) == other_tables({"pruning": None}) == []


def test_what_was_decomposed_and_its_warnings_are_told():
    about = {
        "inputs": "Gaussian tokens",
        "weights": "random",
        "warnings": [paths_tables.HOSTILE, "too short"],
    }
    read = Reader(page_of(with_sections(paths_tables.small(), paths=about)))
    assert "What was decomposed inputs Gaussian tokens weights random" in read.words
    assert "too short" in read.words
    assert read.handlers == []


def test_long_tables_end_with_a_count():
    words = Reader(table_of(("a", "b"), [("x", "1")] * (MOST_ROWS + 7), "many")).words
    assert words.endswith("7 more rows are in the JSON.")
    assert words.count("x 1") == MOST_ROWS


PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)  # fmt: skip
PHONE = {"viewport": {"width": 360, "height": 780}, "has_touch": True, "is_mobile": True}
SIZES = {
    "phone": PHONE,
    "narrow": {"viewport": {"width": 400, "height": 800}},
    "dark": {"color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api",
        reason="reports are opened in a browser through playwright, which is not installed",
    )
    if PROGRAM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome is installed")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    found = {}
    for name in ("gpt2", "hostile", "uneven"):
        table = paths_tables.TABLES[name]()
        path = folder / f"{name}.html"
        path.write_text(page_of(table, title=table.frame["model"][0], command=COMMAND), encoding="utf-8")
        found[name] = path.as_uri()
    return found


class Visit:
    """A page, with an end that checks that nothing was asked for and nothing was reported."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
        self.page = self.context.new_page()
        self.seen = []
        self.page.on("request", lambda request: self.seen.append(request.url))
        for event in ("console", "pageerror", "dialog"):
            self.page.on(event, lambda _, event=event: self.seen.append(event))
        self.page.goto(address)

    def __enter__(self):
        return self.page

    def __exit__(self, *_):
        self.context.close()
        assert [one for one in self.seen[1:] if not one.startswith("data:")] == []


def overflow(page):
    return page.evaluate("document.scrollingElement.scrollWidth - innerWidth")


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "size"), [("gpt2", "phone"), ("gpt2", "dark"), ("hostile", "narrow"), ("uneven", "phone")]
)
def test_the_report_fits_and_nothing_leaves_the_machine(browser, files, name, size):
    with Visit(browser, files[name], **SIZES[size]) as page:
        for summary in page.locator("summary").all():
            summary.click()
        assert overflow(page) <= 0
        assert page.locator("script, img, iframe").count() == 0


@pytest.mark.browser
def test_the_report_fits_paper(browser, files):
    # A4 less the margins of the page, at 96 dots per inch.
    with Visit(browser, files["gpt2"], viewport={"width": 695, "height": 1000}) as page:
        page.emulate_media(media="print")
        assert overflow(page) <= 0
        assert page.locator(".tip:visible, .cols:visible").count() == 0
        assert page.locator(".end:visible").count() == 21


@pytest.mark.browser
def test_hovering_a_path_in_the_list_brings_its_route_forward(browser, files):
    with Visit(browser, files["gpt2"]) as page:
        route = page.locator(".route", has_text="5. L9 h8").first
        route.locator(".end").hover()
        assert page.locator(".route .tip:visible").count() == 1
        assert "2.83% of the output · norm 15.2" in route.locator(".tip").inner_text()
        faint = page.evaluate(
            "[...document.querySelectorAll('.route > svg')].filter(e => getComputedStyle(e).opacity < 1)"
        )
        assert len(faint) == 19
        page.mouse.move(0, 0)
        assert page.locator(".route .tip:visible").count() == 0


@pytest.mark.browser
def test_hovering_the_line_itself_and_arrow_keys_work_too(browser, files):
    with Visit(browser, files["gpt2"]) as page:
        box = page.locator(".routes").bounding_box()
        page.locator(".routes").scroll_into_view_if_needed()
        box = page.locator(".routes").bounding_box()
        # the first path runs as the uppermost one of the lane that passes by, until the last layer
        line = page.locator(".route .road").last
        top = line.evaluate("e => e.getPointAtLength(e.getTotalLength() / 3).y")
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + top)
        assert page.locator(".route .tip:visible b").inner_text() == "1. L12 h3"
        page.mouse.move(0, 0)
        page.locator(".route input").last.focus()
        assert page.locator(".route .tip:visible b").inner_text() == "1. L12 h3"
        page.keyboard.press("ArrowUp")
        assert page.locator(".route .tip:visible b").inner_text().startswith("2. ")


@pytest.mark.browser
def test_hovering_lengths_and_heads_shows_their_numbers(browser, files):
    with Visit(browser, files["gpt2"]) as page:
        column = page.locator(".spectrum .cols label").nth(4)
        column.hover()
        words = column.locator(".tip").inner_text()
        assert all(part in words for part in ("length 4", "−3.91%", "10,264,320", "rounding floor"))  # noqa: RUF001
        cell = page.locator(".heat.paths").first.locator("tbody tr").nth(6).locator("td").nth(9)
        cell.hover()
        assert cell.locator("b").is_visible()
        content = cell.locator("b").evaluate("e => getComputedStyle(e, '::before').content")
        assert "layer" in content
        assert "8.9" in cell.locator("b").inner_text()
