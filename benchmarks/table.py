"""Turn results.jsonl into Markdown tables: `python table.py [results.jsonl]`.

A cell is the median over processes; sections that other processes disturbed are left out where quiet ones exist, and
marked with a star where none do.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import measure
import settings

Row = dict


def main() -> None:
    """Print every table for which there are rows."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("results.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for setting in settings.SETTINGS:
        _print(setting, _training(setting, [row for row in rows if row.get("setting") == setting]))
    _print("against the faster peer", _summary([row for row in rows if "setting" in row]))
    _print("conservative Q-learning", _conservative([row for row in rows if "setting" in row]))
    _print("eight seeds", _mapped([row for row in rows if "mapped" in row]))
    _print("extensions", _extensions([row for row in rows if "extension" in row]))
    _print("the second call", _again([row for row in rows if "again" in row]))
    _print("a user's 100,000 steps", _users([row for row in rows if "user" in row]))
    _print("import", _imports([row for row in rows if "import" in row and "seconds" in row]))
    _print("matrix products", _products([row for row in rows if "products" in row]))


def _training(setting: str, rows: list[Row]) -> list[list[str]]:
    unit = "updates/s" if settings.SETTINGS[setting].batch else "steps/s"
    table = [["library", f"{unit} (min-max)", f"{unit} per core-second", "trace + compile s", "peak MB", "processes"]]
    for library, group in _groups(rows, "library").items():
        quiet = [row for row in group if max(row["others"]) < measure.QUIET]
        used = quiet or group
        rates = [row["rate"] for row in used]
        compiling = [row["build"] for row in used if "build" in row]
        cells = [
            f"{_number(statistics.median(rates))}{'' if quiet else '*'} ({_number(min(rates))}-{_number(max(rates))})",
            _number(statistics.median(row["cpu_rate"] for row in used)),
            _number(statistics.median(compiling)) if compiling else "-",
            _number(statistics.median(row["peak"] for row in group)),
        ]
        table.append([library, *cells, f"{len(quiet)}/{len(group)}"])
    return table


def _middle(rows: list[Row], field: str) -> float:
    """The median over quiet processes, or over all where there are none."""
    quiet = [row for row in rows if max(row["others"]) < measure.QUIET]
    return statistics.median(row[field] for row in quiet or rows)


def _summary(rows: list[Row]) -> list[list[str]]:
    libraries = ("perdure", "ajax", "rejax")
    heads = [f"{library}, {unit}" for unit in ("wall", "CPU") for library in libraries]
    table = [["setting", *heads, "ratio, wall", "ratio, CPU"]]
    for setting, mine in _groups(rows, "setting").items():
        groups = {name: group for name, group in _groups(mine, "library").items() if name in libraries}
        cells, ratios = [], []
        for field in ("rate", "cpu_rate"):
            rates = {name: _middle(group, field) for name, group in groups.items()}
            cells += [_number(rates[name]) if name in rates else "-" for name in libraries]
            peers = [rate for name, rate in rates.items() if name != "perdure"]
            ratios.append(f"{rates['perdure'] / max(peers):.2f}" if peers and "perdure" in rates else "-")
        table.append([setting, *cells, *ratios])
    return table


def _conservative(rows: list[Row]) -> list[list[str]]:
    table = [["library", "SAC, CPU ms an update", "with CQL", "ratio", "ratio, wall"]]
    for library, mine in _groups(rows, "library").items():
        groups = _groups(mine, "setting")
        if {"sac", "sac-cql"} <= groups.keys():
            plain, cql = ([1e3 / _middle(groups[name], f) for f in ("cpu_rate", "rate")] for name in ("sac", "sac-cql"))
            cells = [plain[0], cql[0], cql[0] / plain[0], cql[1] / plain[1]]
            table.append([library, *map(_number, cells)])
    return table


def _mapped(rows: list[Row]) -> list[list[str]]:
    table = [["setting", "one seed, CPU microseconds a unit", "eight seeds, a unit and seed", "ratio"]]
    for setting, group in _groups(rows, "mapped").items():
        costs = {seeds: 1e6 / _middle(mine, "cpu_rate") for seeds, mine in _groups(group, "seeds").items()}
        if {1, 8} <= costs.keys():
            table.append([setting, _number(costs[1]), _number(costs[8]), f"{costs[8] / costs[1]:.2f}"])
    return table


def _extensions(rows: list[Row]) -> list[list[str]]:
    agents = sorted({row["agent"] for row in rows})
    table = [["extension", *agents]]
    for name, group in sorted(_groups(rows, "extension").items()):
        found = _groups(group, "agent")
        table.append([f"`{name}`", *(_cost(found[agent]) if agent in found else "" for agent in agents)])
    return table


def _cost(rows: list[Row]) -> str:
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if not ratios:
        return "refused"
    after = f" (with {', '.join(rows[-1]['after'])})" if rows[-1]["after"] else ""
    return f"{statistics.median(ratios):.2f}{after}"


def _again(rows: list[Row]) -> list[list[str]]:
    table = [["agent", "programs compiled: first call, second", "seconds: first call, second"]]
    for row in rows:
        both = lambda field, row=row: ", ".join(str(value) for value in row[field])
        table.append([row["again"], both("programs"), both("seconds")])
    return table


def _users(rows: list[Row]) -> list[list[str]]:
    table = [["library", "cache", "import s", "first call s", "second call s", "process s", "process CPU s", "score"]]
    for library, mine in _groups(rows, "user").items():
        for cache, group in _groups(mine, "cache").items():
            fields = ("import", "first", "second", "process", "process_cpu", "score")
            table.append([library, cache, *(_number(statistics.median(row[name] for row in group)) for name in fields)])
    return table


def _imports(rows: list[Row]) -> list[list[str]]:
    table = [["library", "seconds", "peak MB"]]
    for name, group in _groups(rows, "import").items():
        table.append(
            [name, *(_number(statistics.median(row[field] for row in group)) for field in ("seconds", "peak"))]
        )
    return table


def _products(rows: list[Row]) -> list[list[str]]:
    table = [["products of", "precision", "updates/s", "GFLOP/s"]]
    for name, mine in _groups(rows, "products").items():
        for precision, group in _groups(mine, "precision").items():
            updates = [row["updates"] for row in group if "updates" in row]
            speed = statistics.median(row["gflops"] for row in group)
            table.append([name, precision, _number(statistics.median(updates)) if updates else "-", _number(speed)])
    return table


def _groups(rows: Iterable[Row], field: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[field]].append(row)
    return groups


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _print(title: str, table: list[list[str]]) -> None:
    if len(table) < 2:
        return
    print(f"\n### {title}\n")
    for index, row in enumerate(table):
        print(f"| {' | '.join(row)} |")
        if index == 0:
            print(f"|{'---|' * len(row)}")


if __name__ == "__main__":
    main()
