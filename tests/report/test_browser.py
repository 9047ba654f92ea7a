"""The report in a real browser: it draws, follows the theme, fits a phone, prints, and asks for nothing."""

import json
import re
import shutil
import subprocess

import pytest

from perdure.report import page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [pytest.mark.browser, pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Runs inside a copy of the page and writes what it sees into the document, which --dump-dom returns.
PROBE = """
<script>
const style = getComputedStyle(document.body);
const shown = (e) => e.getClientRects().length > 0;
const pictures = [...document.querySelectorAll('svg[role=img]')].filter(shown);
const seen = {
  background: style.backgroundColor,
  text: style.color,
  width: innerWidth,
  overflow: document.documentElement.scrollWidth - innerWidth,
  tables: [...document.querySelectorAll('table')].filter(shown).length,
  pictures: pictures.length,
  empty: pictures.filter(p => ![...p.querySelectorAll('.stroke, .mark, .whisker')].some(
    s => { const b = s.getBBox(); return b.width + b.height > 0; })).length,
  outside: pictures.filter(p => { const b = p.getBBox(), v = p.viewBox.baseVal;
    return b.x < -2 || b.y < -2 || b.x + b.width > v.width + 2 || b.y + b.height > v.height + 2; }).length,
  strokes: [...new Set([...document.querySelectorAll('.stroke')].map(s => getComputedStyle(s).stroke))],
  wide: document.querySelector('.wide').getClientRects().length,
  narrow: document.querySelector('.narrow').getClientRects().length,
  loaded: performance.getEntriesByType('resource').length,
};
const out = document.createElement('pre');
out.id = 'probe';
out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>
"""


@pytest.fixture(scope="module")
def report(comparison, tmp_path_factory):
    """The report of the three arms on disk."""
    return page.write_report(comparison, tmp_path_factory.mktemp("browser") / "report.html")


def _chromium(profile, *arguments):
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def _probe(report, profile, width=1280, scheme=1):
    text = report.read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    copy = report.with_name("probe.html")
    copy.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    size, colours = f"--window-size={width},900", f"--blink-settings=preferredColorScheme={scheme}"
    dom = _chromium(profile, size, colours, "--dump-dom", copy.as_uri()).stdout
    return json.loads(re.search(r'<pre id="probe">(.*?)</pre>', dom, re.S).group(1))


def _lightness(colour):
    return sum(int(value) for value in re.findall(r"\d+", colour)[:3]) / 3


def test_the_page_draws_every_figure_and_table(report, tmp_path):
    seen = _probe(report, tmp_path)
    assert seen["tables"] >= 7
    assert seen["pictures"] >= 17
    assert seen["empty"] == 0
    assert seen["outside"] == 0
    assert seen["overflow"] <= 0


def test_the_page_follows_the_light_and_the_dark_theme(report, tmp_path):
    light, dark = (_probe(report, tmp_path / str(scheme), scheme=scheme) for scheme in (1, 0))
    assert _lightness(light["background"]) > 240 > 60 > _lightness(light["text"])
    assert _lightness(dark["background"]) < 40 < 200 < _lightness(dark["text"])
    assert not set(light["strokes"]) & set(dark["strokes"])


def test_a_narrow_screen_gets_the_narrow_figure_and_no_sideways_scrolling(report, tmp_path):
    wide, narrow = _probe(report, tmp_path / "wide"), _probe(report, tmp_path / "narrow", width=500)
    assert narrow["width"] <= 640
    assert narrow["overflow"] <= 0
    assert (wide["wide"], wide["narrow"]) == (1, 0)
    assert (narrow["wide"], narrow["narrow"]) == (0, 1)


def test_the_page_loads_nothing_and_says_nothing_on_the_console(report, tmp_path):
    assert _probe(report, tmp_path / "probe")["loaded"] == 0
    log = _chromium(tmp_path / "log", "--enable-logging=stderr", "--dump-dom", report.as_uri()).stderr
    assert "CONSOLE" not in log


def test_the_page_prints(report, tmp_path):
    target = tmp_path / "report.pdf"
    _chromium(tmp_path / "profile", f"--print-to-pdf={target}", report.as_uri())
    pages = re.search(rb"/Count (\d+)", target.read_bytes())
    assert target.read_bytes().startswith(b"%PDF")
    assert 3 <= int(pages.group(1)) <= 12
