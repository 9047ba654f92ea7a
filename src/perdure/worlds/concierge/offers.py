"""Listings: what a vendor has on offer for a query, a pure function of the world's seed and the query."""

from collections.abc import Mapping
from typing import Any

from perdure.worlds.concierge import chance

Listing = tuple[Mapping[str, Any], ...]


def listing(spec: Mapping[str, Any], domain: str, seed: int, keys: Mapping[str, Any], most: int = 0) -> Listing:
    """The offers for a query; `most` limits their number (0: as the vendor has).

    `spec` is the domain file's section `offers`: either `count` = [fewest, most] offers, or `each`,
    one offer for each value of an attribute. Attributes are drawn as their descriptions say.
    """
    draws = chance.Draws(seed, "offers", domain, *(f"{name}={keys[name]}" for name in sorted(keys)))
    if "each" in spec:
        fixed = [dict(row) for row in spec["each"]]
    else:
        low, high = spec["count"]
        count = draws.between(low, high)
        fixed = [{} for _ in range(min(count, most) if most else count)]
    shared = {name: value for name, value in keys.items() if isinstance(value, str)}
    rows = [{**shared, **row, "index": index} for index, row in enumerate(fixed)]
    for name, drawn in spec["attributes"].items():
        for row, value in zip(rows, _column(drawn, draws, keys, rows), strict=True):
            row[name] = value
    return tuple(rows)


def listing_key(domain: str, keys: Mapping[str, Any]) -> str:
    """The name of a query: its vendor and the arguments that select a listing."""
    return "\x1f".join([domain, *(f"{name}={keys[name]}" for name in sorted(keys))])


def offer_id(
    prefix: str, seed: int, offer: Mapping[str, Any], keys: Mapping[str, Any], epoch: int, short: bool = False
) -> str:
    """The name under which an offer can be booked while the vendor's `epoch` lasts."""
    place = "/".join(str(keys[name]) for name in sorted(keys))
    return chance.identifier(prefix, short, seed, "id", prefix, place, offer["index"], epoch)


def _column(drawn: Mapping[str, Any], draws: chance.Draws, keys: Mapping[str, Any], rows: list[Any]) -> list[Any]:
    """One attribute of every offer."""
    if "times" in drawn:
        hours = sorted(draws.sample(drawn["times"], min(len(rows), len(drawn["times"]))))
        return [f"{keys['date']}T{hour:02d}:{5 * draws.below(12):02d}:00+05:30" for hour in hours]
    if "menu" in drawn:
        return [_menu(drawn, draws, row) for row in rows]
    if drawn.get("shared"):
        return [_value(drawn, draws)] * len(rows)
    if "factor" in drawn:
        base = draws.between(drawn["low"], drawn["high"], drawn.get("step", 1))
        return [base * row[drawn["factor"]] // 10 for row in rows]
    column = [_value(drawn, draws) for _ in rows]
    if drawn.get("distinct"):
        column = _made_distinct(column, drawn["step"])
    return column


def _value(drawn: Mapping[str, Any], draws: chance.Draws) -> Any:
    if "choice" in drawn:
        return draws.choice(drawn["choice"])
    if "chance" in drawn:
        return draws.happens(drawn["chance"])
    return draws.between(drawn["low"], drawn["high"], drawn.get("step", 1))


def _made_distinct(column: list[int], step: int) -> list[int]:
    """Equal values moved up by a step, so that a preference always has one answer."""
    taken: set[int] = set()
    result: list[int] = []
    for value in column:
        while value in taken:
            value += step
        taken.add(value)
        result.append(value)
    return result


def _menu(drawn: Mapping[str, Any], draws: chance.Draws, row: Mapping[str, Any]) -> tuple[tuple[str, str, int], ...]:
    """Some dishes, each [name, diet, low, high], at this restaurant's prices; no meat in a vegetarian kitchen."""
    dishes = [dish for dish in drawn["menu"] if dish[1] != "nonveg" or not row.get(drawn.get("veg_rows", ""))]
    kept = draws.sample(dishes, 3 + draws.below(3))
    return tuple((name, diet, draws.between(low, high, 10)) for name, diet, low, high in kept)
