"""The report in a real browser: nothing is fetched, nothing runs, notes show on hover, touch and keys, and it fits."""

import shutil

import pytest

from kit import scan_tables
from rankscope.document import Column, Document, Facts, Notes, Prose, Section, Tabular, Verdict
from rankscope.document.html import to_html

playwright = pytest.importorskip(
    "playwright.sync_api", reason="reports are opened in a browser through playwright, which is not installed"
)
PROGRAM = next(
    filter(
        None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))
    ),
    None,
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium, chromium-browser or google-chrome is installed"),
]

OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)
COMMAND = scan_tables.HOSTILE[1]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=PROGRAM, args=list(OPTIONS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Addresses of the reports, each in a folder."""
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    for name in ("collapsing", "attention", "hostile", "deep"):
        path = folder / f"{name}.html"
        path.write_text(scan_tables.SCANS[name]().to_html(made_by=COMMAND), encoding="utf-8")
        found[name] = path.as_uri()
    return found


class Visit:
    """A page and everything that happened while it was open."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.page = self.context.new_page()
        self.requests, self.trouble = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.trouble.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.trouble.append("dialog"), dialog.dismiss()))
        self.page.goto(address)

    def __enter__(self):
        return self.page

    def __exit__(self, *_):
        outside = [url for url in self.requests[1:] if not url.startswith("data:")]
        self.context.close()
        assert outside == []
        assert self.requests[0].startswith("file:")
        assert self.trouble == []


def overflow(page):
    return page.evaluate("document.scrollingElement.scrollWidth - innerWidth")


PHONE = {"viewport": {"width": 360, "height": 780}, "has_touch": True, "is_mobile": True}
SIZES = {"phone": PHONE, "desk": {}, "dark": {"color_scheme": "dark"}}


# What is wider than a desk is wider than a phone: there the longest names and the broadest maps are tried as well.
@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, "phone") for name in ("collapsing", "attention", "hostile", "deep")),
        *((name, "desk") for name in ("attention", "hostile")),
    ],
)
def test_the_report_fits_and_nothing_leaves_the_machine(browser, files, name, size):
    with Visit(browser, files[name], **SIZES[size]) as page:
        for summary in page.locator("summary").all()[:4]:
            summary.click()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.locator(".verdict h2").is_visible()
            assert overflow(page) <= 0


@pytest.mark.parametrize("name", ["attention", "hostile"])
def test_the_report_fits_paper(browser, files, name):
    # A4 less the margins of the page, at 96 dots per inch.
    with Visit(browser, files[name], viewport={"width": 695, "height": 1000}) as page:
        page.emulate_media(media="print")
        assert overflow(page) <= 0
        assert not page.locator("nav").is_visible()
        assert page.locator(".tip:visible").count() == 0


def test_hostile_names_are_text_and_nothing_else(browser, files):
    with Visit(browser, files["hostile"]) as page:
        # A script that ran would have opened a dialog, which the visit counts as trouble.
        page.wait_for_timeout(200)
        assert page.locator("script, img, iframe, object, embed, form").count() == 0
        handlers = page.evaluate(
            "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
        )
        assert handlers == []
        stacks = page.locator("dl.key dt").all_inner_texts()
        assert stacks[:4] == list(scan_tables.HOSTILE[:4])
        assert page.locator("footer code").inner_text() == COMMAND


def test_hover_shows_what_all_lines_say_at_a_layer(browser, files):
    with Visit(browser, files["collapsing"]) as page:
        chart = page.locator(".charts svg").first
        column = chart.locator(".col").nth(5)
        tip = column.locator(".tip")
        assert not tip.is_visible()
        column.locator("> rect").hover()
        assert tip.is_visible()
        words = " ".join(tip.locator("text").all_text_contents())
        assert all(part in words for part in ("layer 5", "block: 0.0819", "attention: ", "mlp: "))
        assert page.locator(".tip:visible").count() == 1
        page.mouse.move(0, 0)
        assert not tip.is_visible()


def test_the_tab_key_walks_along_the_layers_of_one_chart(browser, files):
    with Visit(browser, files["collapsing"]) as page:
        page.locator(".beside .col").first.focus()
        for layer in range(3):
            assert page.locator(".tip:visible text").first.text_content() == f"layer {layer}"
            page.keyboard.press("Tab")


def test_touch_shows_values(browser, files):
    with Visit(browser, files["deep"], **PHONE) as page:
        columns = page.locator(".beside .col")
        for place in (0, 20, columns.count() - 1):
            columns.nth(place).locator("> rect").tap()
            assert columns.nth(place).locator(".tip").is_visible()
        assert overflow(page) <= 0


def test_small_charts_fit_a_phone_and_keep_legible_letters(browser, files):
    with Visit(browser, files["collapsing"], **PHONE) as page:
        charts = page.locator(".charts.small svg, .beside svg.chart")
        assert charts.count() > 5
        for chart in charts.all():
            box = chart.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 360
        # Letters of ten dots, drawn at this share of their size.
        scale = charts.first.evaluate("e => e.getBoundingClientRect().width / e.viewBox.baseVal.width")
        assert 10 * scale >= 7


def test_cells_of_maps_show_their_note(browser, files):
    with Visit(browser, files["attention"]) as page:
        whole = page.locator(".charts.small").last.locator("svg").first
        cell = whole.locator(".col").nth(1 * 12 + 7)
        cell.locator("> rect").hover()
        words = cell.locator(".tip text").all_text_contents()
        assert words[0] == "layer 2, head 7"
        large = page.locator(".broad svg").first  # too many cells for boards: the browser shows the title
        title = large.locator("rect title").nth(3 * 12 + 1).text_content()
        assert title.startswith("layer 3, unit tokens: unit residual ratio: 0.")


def test_the_page_reads_in_gray_and_in_the_dark(browser, files):
    """Ink and paper of the body and of the verdict differ enough in either scheme."""
    contrast = """selector => {
      const channels = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const level = rgb => rgb.reduce((sum, v, i) => sum + linear(v / 255) * [.2126, .7152, .0722][i], 0);
      const style = getComputedStyle(document.querySelector(selector));
      const behind = getComputedStyle(document.querySelector(selector).closest('.verdict, body')).backgroundColor;
      const [low, high] = [level(channels(style.color)), level(channels(behind))].sort((a, b) => a - b);
      return (high + .05) / (low + .05);
    }"""
    for name in ("desk", "dark"):
        with Visit(browser, files["collapsing"], **SIZES[name]) as page:
            for selector in ("body", ".verdict h2", ".verdict p", ".note"):
                assert page.evaluate(contrast, selector) >= 4.5, (name, selector)


def test_sentences_of_a_table_fit_a_phone(browser, tmp_path):
    """Beside each other, two columns of sentences would be wider than the screen: there every cell has its own line."""
    rows = [["agrees", "what was said " * 12, "what was measured " * 12]] * 2
    columns = [Column("verdict"), Column("said", "words"), Column("measured", "words")]
    table = Tabular(columns=columns, rows=rows)
    path = tmp_path / "table.html"
    path.write_text(to_html(Document(title="Sentences", command="claims", blocks=[table])), encoding="utf-8")
    inner = (
        "(() => {const box = document.querySelector('.wide'); return box.scrollWidth - box.clientWidth})()"
    )
    first = "getComputedStyle(document.querySelector('td'), '::before').content"
    for options, label in ((PHONE, '"verdict"'), ({}, "none")):
        with Visit(browser, path.as_uri(), **options) as page:
            assert page.evaluate(inner) == 0
            assert page.evaluate(first) == label


@pytest.mark.parametrize("size", ["phone", "desk"])
def test_names_of_200_letters_in_every_block_keep_the_page_in_its_width(browser, tmp_path, size):
    long = "x" * 200
    inside = [
        Verdict(long, [long], "good"),
        Prose([long], title=long),
        Notes([long]),
        Facts([(long, long)], title=long),
        Tabular(
            columns=[Column(long, "name"), Column(long, "words")], rows=[[long, long]], title=long, note=long
        ),
    ]
    page = Document(
        title=long,
        command="scan",
        facts=[long],
        blocks=[*inside, Section(long, inside, note=long), Section(long, [], note=long)],
        definitions=[(long, long)],
        origin={"config": {long: long}},
    )
    (tmp_path / "a.html").write_text(to_html(page), encoding="utf-8")
    with Visit(browser, (tmp_path / "a.html").as_uri(), **SIZES[size]) as shown:
        for summary in shown.locator("summary").all():
            summary.click()
        assert overflow(shown) <= 0
