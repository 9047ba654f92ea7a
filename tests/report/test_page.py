"""perdure.report.page."""

import builtins
import html.parser
import json
import re
from pathlib import Path

import pytest

from perdure.core.errors import DataError, MissingExtra
from perdure.core.records import Segment
from perdure.harness import runs as reading
from perdure.report import page

VOID = {"meta", "br", "hr", "img", "link", "input"}
HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(1)>\'&amp;\ud800'


class Nesting(html.parser.HTMLParser):
    """Checks that every tag is closed in order, and keeps tags, ids and texts."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.ids, self.headings = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def text(comparison):
    """The page of the three arms."""
    return page.render(comparison)


def test_the_page_is_well_formed_and_in_the_readers_order(text):
    parsed = Nesting(text)
    assert parsed.headings == [
        "Score over time",
        "The six metrics",
        "What the frozen policy can still do",
        "Recovery after each shift",
        "Can the networks still learn?",
        "What was run",
        "How each number is defined",
        "The resolved documents",
    ]
    assert len(set(parsed.ids)) == len(parsed.ids)


def test_every_entry_of_the_contents_leads_somewhere(text):
    assert set(re.findall('href="#([^"]+)"', text)) == set(re.findall('<section id="([^"]+)"', text))


def test_the_page_needs_no_network_and_no_script(text):
    outside = text.replace("http-equiv", "")
    assert not re.search(r"https?://|src=|@import|url\(|<script|<link|\son[a-z]+=", outside)
    assert "default-src 'none'" in text


def test_verdicts_come_before_the_figures(text):
    assert text.index("Which arm forgot least") < text.index("<svg")
    assert text.index("Which arm recovered fastest") < text.index("<svg")


def test_every_figure_is_described_in_words(text):
    pictures = re.findall(r"<svg [^>]*>", text)
    described = [picture for picture in pictures if 'role="img"' in picture]
    assert all(re.search(r'aria-label="[^"]{20,}"', picture) for picture in described)
    assert all('aria-hidden="true"' in picture for picture in pictures if picture not in described)


def test_the_bytes_are_the_same_every_time(comparison, tmp_path):
    first = page.write_report(comparison, tmp_path / "a.html").read_bytes()
    second = page.write_report(comparison, tmp_path / "b.html").read_bytes()
    assert first == second


def test_only_the_report_is_left_behind(comparison, tmp_path):
    written = page.write_report(comparison, tmp_path / "new" / "report.html", title="A <title>")
    assert written == tmp_path / "new" / "report.html"
    assert [path.name for path in written.parent.iterdir()] == ["report.html"]
    assert "<title>A &lt;title&gt;</title>" in written.read_text(encoding="utf-8")


def test_hostile_strings_stay_text(run_maker, tmp_path):
    segments = (Segment(HOSTILE, HOSTILE, 0, 600), Segment("b" + HOSTILE, "b" + HOSTILE, 600, 1200))
    event = {"step": HOSTILE, "kind": "warning", "message": HOSTILE}
    fields = {"error": HOSTILE, "status": HOSTILE, "boundary_source": HOSTILE, "run_id": HOSTILE, "created": HOSTILE}
    settings = {"versions": {"perdure": HOSTILE, HOSTILE: HOSTILE}, "config": {HOSTILE: {"x": HOSTILE}}}
    run = run_maker(algorithm_id=HOSTILE, task=HOSTILE, segments=segments, **fields, **settings)
    rows = [row._replace(metrics={f"effective_rank/{HOSTILE}": 3.0}) for row in run.evaluations]
    run = run._replace(evaluations=rows, warnings=[HOSTILE], events=[event], path=Path(HOSTILE.replace("/", "")))
    other = run_maker(algorithm_id="other", task=HOSTILE, segments=segments)
    text = page.write_report([run, other], tmp_path / "hostile.html", title=HOSTILE).read_text(encoding="utf-8")
    parsed = Nesting(text)
    assert not {"script", "img"} & set(parsed.tags)
    assert "&lt;script&gt;" in text


def test_a_single_run_has_the_same_page_with_fewer_parts(run_maker):
    segments = (Segment("only", "only", 0, 3000),)
    text = page.render([run_maker(seeds=(0,), segments=segments, evaluated=False)])
    parsed = Nesting(text)
    assert "Score over time" in parsed.headings
    assert "Recovery after each shift" not in parsed.headings
    assert "undefined" in text


@pytest.mark.parametrize("length", [0, 1, 4000])
def test_an_unfinished_run_is_reported_with_a_caution(run_maker, length):
    run = run_maker(seeds=(0,), status="interrupted", done_steps=length)
    stream = run.streams[0]
    columns = ("step", "lane", "reward", "terminated", "truncated")
    cut = stream._replace(**{name: getattr(stream, name)[:length] for name in columns})
    rows = [row for row in run.evaluations if row.step <= length]
    text = page.render([run._replace(streams=[cut], evaluations=rows)])
    Nesting(text)
    assert f"is interrupted at {length:,} of 12,000 steps" in text


def test_a_run_that_never_took_a_step_is_reported(run_maker):
    text = page.render([run_maker(status="failed", error="no such world")._replace(streams=[], evaluations=[])])
    Nesting(text)
    assert "no such world" in text


def test_a_sweep_of_sixty_cells_stays_small_and_keeps_tasks_apart(run_maker, arm_names):
    tasks = [f"world/{i}" for i in range(4)]
    runs = [run_maker(arm, task=task, seeds=(0, 1, 2, 3, 4), steps=600) for task in tasks for arm in arm_names]
    text = page.render(runs)
    Nesting(text)
    assert len(text) < 5_000_000
    assert "ppo, ppo_l2_init and ppo_redo on 4 tasks" in text
    assert all(f"<h3>{task}: earth → reversed → heavy → earth_again</h3>" in text for task in tasks)


def test_more_arms_than_colours_are_drawn_in_grey(run_maker, arm_names):
    runs = [run_maker(arm_names[i % 3], algorithm_id=f"arm{i}", seeds=(0,), steps=600) for i in range(10)]
    text = page.render(runs)
    assert "3 other arms, in grey" in text
    assert "Matrices of the 3 arms drawn in grey" in text


def test_the_coloured_arms_are_those_with_the_most_reward(run_maker):
    runs = [run_maker("ppo", algorithm_id=f"weak{i}", seeds=(0,), steps=600) for i in range(9)]
    runs.append(run_maker("ppo_redo", algorithm_id="strong", seeds=(0,), steps=600))
    legend = re.search(r'<ul class="legend">.*?</ul>', page.render(runs)).group(0)
    assert "strong" in legend


def test_a_trace_that_somebody_else_made_is_reported(tmp_path):
    lines = [
        {"seed": 0, "step": step, "reward": 1.0, "terminated": step % 20 == 19, "truncated": False}
        for step in range(400)
    ]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = reading.load_run(reading.find_runs(tmp_path)[0])
    text = page.render([run])
    Nesting(text)
    assert "Score over time" in text


def test_no_runs_are_refused():
    with pytest.raises(DataError, match="at least one run"):
        page.render([])


def test_a_place_that_cannot_be_written_is_named(comparison, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/report.html cannot be written"):
        page.write_report(comparison, tmp_path / "file" / "report.html")


def test_a_missing_template_library_names_the_extra(comparison, monkeypatch):
    load = builtins.__import__

    def refuse(name, *rest, **named):
        if name == "jinja2":
            raise ImportError(name)
        return load(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"perdure\[report\]"):
        page.render(comparison)
