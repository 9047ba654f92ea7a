"""What a search does with the offers of a listing: filters, pages, defaults."""

from collections.abc import Mapping
from typing import Any

from perdure.worlds.concierge import judge
from perdure.worlds.concierge.contract import Contract, Tool


def passes(tool: Tool, known: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether an offer passes the filters of a search."""
    for name, argument in tool.arguments.items():
        if not argument.filter or name not in values:
            continue
        fact, wanted = known.get(argument.of), values[name]
        if fact is None or (argument.filter == "at_most" and fact > wanted):
            return False
        if argument.filter == "equals" and fact != wanted:
            return False
        if argument.filter == "window" and not judge.in_window(fact, wanted):
            return False
        if argument.filter == "holds" and wanted and not fact:
            return False
    return True


def paged(contract: Contract, rows: list[dict[str, Any]], page: int) -> dict[str, Any]:
    """One page of the results, and the number of the next where there is one."""
    size = contract.page_size
    if not size:
        return {"results": rows}
    more = {"next_page": page + 1} if len(rows) > page * size else {}
    return {"results": rows[(page - 1) * size : page * size], **more}


def applied(tool: Tool, values: Mapping[str, Any]) -> dict[str, Any]:
    """The filters that a search applied because they are its defaults."""
    defaults = {
        name: argument.default
        for name, argument in tool.arguments.items()
        if argument.filter == "window" and argument.default is not None and values.get(name) == argument.default
    }
    return {"applied": defaults} if defaults else {}
