"""The pages of the continual methods say what the code and the results say; as a script, this writes them so.

python tests/test_continual_pages.py
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path

import pytest
import yaml

from perdure.core import registry
from perdure.rl.memory import Memory
from perdure.rl.reservoir import Reservoir

FOLDER = Path(__file__).parents[1] / "docs" / "continual"
RESULTS = FOLDER.parent / "results" / "continual.md"
PARTS = {"reservoir": Reservoir, "context_memory": Memory}
"""Pages of what an agent's field holds."""
OPTIONS = {"crelu": "`activation`", "layer_norm": "`layer_norm`"}
"""Pages of an agent's own fields."""
METHODS = [
    "agem",
    "churn",
    "clear",
    "continual_backprop",
    "ewc",
    "l2_init",
    "mas",
    "online_ewc",
    "packnet",
    "parseval",
    "plasticity_injection",
    "policy_consolidation",
    "previous_policy",
    "redo",
    "reset_moments",
    "reward_centering",
    "shrink_perturb",
    "spectral",
    "synaptic_intelligence",
    "upgd",
    "wasserstein_init",
]
"""Pages of extensions."""
NAMES = sorted([*METHODS, *PARTS, *OPTIONS])
SHOWN = ("reward", "adaptation speed", "forgetting", "recovery time", "matrix forgetting")
"""Columns of the results that a page quotes."""
MARKS = {"fields": "<!-- fields -->", "measured": "<!-- measured -->"}
"""What stands before each generated part, which ends with the page's next heading, block or end."""


def texts(cls):
    """Field -> the text below its declaration, on one line, in a class or those it derives from."""
    found = {}
    for each in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(each):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0].body
        for line, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                if told or line.target.id not in found:
                    found[line.target.id] = " ".join(following.value.value.split()) if told else ""
    return found


def fields(name):
    """The table of a page's fields and defaults, from the code."""
    if name in OPTIONS:
        return f"It has no fields of its own: it is the field {OPTIONS[name]} of [every agent](../agents.md)."
    cls = PARTS.get(name) or registry.resolve("extensions", name)
    known = texts(cls)
    plain = lambda value: str(value).lower() if isinstance(value, bool) else str(value)
    rows = [f"| `{each.name}` | {plain(each.default)} | {known[each.name]} |" for each in dataclasses.fields(cls)]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows]) if rows else "It has no fields."


def tables():
    """The tables of the page of results: arm -> column -> cell."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", RESULTS.read_text(), re.MULTILINE):
        titles, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines())
        found.append({row[0].strip("`"): dict(zip(titles, row, strict=True)) for row in rows})
    return found


def measured(name):
    """What the page of results says of the method, beside plain PPO in the same table."""
    rows = next((table for table in tables() if name in table), {})
    link = "[the stream](../results/continual.md)"
    if name not in rows:
        return f"Not measured on {link}, where the agent is PPO."
    head = (
        f"On {link}, untuned; interquartile means over four seeds with 95 % intervals,\n"
        "marked \\* where the interval is apart from plain PPO's:"
    )
    cells = [f"| {measure} | {rows[name][measure]} | {rows['plain'][measure]} |" for measure in SHOWN]
    return "\n".join([head, "", f"| measure | `{name}` | plain PPO |", "|---|---|---|", *cells])


def written(name):
    """The page with its generated parts as they should be."""
    page = (FOLDER / f"{name}.md").read_text()
    for part, text in (("fields", fields(name)), ("measured", measured(name))):
        start, _, rest = page.partition(MARKS[part] + "\n")
        block = rest.find("```")
        page = f"{start}{MARKS[part]}\n\n{text}\n" + (f"\n{rest[block:]}" if block >= 0 else "")
    return page


@pytest.mark.parametrize("name", NAMES)
def test_fields_and_results_are_those_of_the_code_and_of_the_measurement(name):
    assert (FOLDER / f"{name}.md").read_text() == written(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_formula_source_and_a_document_of_its_method(name):
    page = (FOLDER / f"{name}.md").read_text()
    assert len(re.findall(r"^```text\n(?:.+\n)+?```$", page, re.MULTILINE)) == 1
    assert re.search(r"^\| source \| .*\d{4}", page, re.MULTILINE)
    assert re.search(r"^\| metrics it logs \| \S", page, re.MULTILINE)
    document = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    used = [each["name"] for each in document["algorithm"].get("extensions", [])]
    assert used == ([name] if name in METHODS else [])


@pytest.mark.parametrize("name", METHODS)
def test_the_signal_is_the_one_that_the_extension_needs(name):
    signal = re.search(r"^\| signal it needs \| (.*) \|$", (FOLDER / f"{name}.md").read_text(), re.MULTILINE).group(1)
    cls = registry.resolve("extensions", name)
    triggered = "trigger" in {each.name for each in dataclasses.fields(cls)}
    always = "boundary" in cls().all_needs()
    waiting = triggered and "boundary" in cls(trigger="shift").all_needs()
    assert signal.startswith("a shift") == always
    assert ("trigger: shift" in signal) == waiting
    assert (signal == "none") == (not always and not waiting)


def test_the_index_names_every_page():
    index = (FOLDER / "index.md").read_text()
    assert sorted(re.findall(r"^\| \[`(\w+)`\]", index, re.MULTILINE)) == NAMES
    assert {page.stem for page in FOLDER.glob("*.md")} == {*NAMES, "index"}


if __name__ == "__main__":
    for each in NAMES:
        (FOLDER / f"{each}.md").write_text(written(each))
