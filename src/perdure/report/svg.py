"""SVG text by construction: escaped elements, linear scales, round ticks and short numbers."""

import math
from html import escape
from typing import Any, NamedTuple

import numpy as np


class Safe(str):
    """Text that already is markup. Templates that escape by themselves leave it alone."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


class Scale(NamedTuple):
    """A linear map from data [low, high] to picture units [start, stop]."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: Any) -> Any:
        span = (self.high - self.low) or 1.0
        return self.start + (np.asarray(value, float) - self.low) / span * (self.stop - self.start)


def element(name: str, *children: str, **attributes: Any) -> Safe:
    """`<name attributes>children</name>`, everything escaped that is not `Safe` already.

    Attribute names are given with underscores for dashes; a trailing underscore (`class_`) is
    dropped, an attribute that is None is left out, and a float is written with one decimal.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_attribute(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(child if isinstance(child, Safe) else escape(child, quote=False) for child in children)
    return Safe(f"<{name}{written}>{inner}</{name}>")


def join(parts: Any) -> Safe:
    """Several pieces of markup as one; plain strings among them are escaped."""
    return Safe("".join(part if isinstance(part, Safe) else escape(part, quote=False) for part in parts))


def line_path(x: np.ndarray, y: np.ndarray) -> str:
    """The `d` of a polyline through the points; it is broken where a coordinate is not finite.

    A point with no finite neighbour becomes a stroke of no length, which round caps show as a dot.
    """
    known = np.isfinite(x) & np.isfinite(y)
    before = np.concatenate([[False], known[:-1]])
    after = np.concatenate([known[1:], [False]])
    commands = []
    for i in np.flatnonzero(known).tolist():
        commands.append(f"{'L' if before[i] else 'M'}{_short(x[i])} {_short(y[i])}")
        if not before[i] and not after[i]:
            commands.append("h0")
    return "".join(commands)


def ribbon_path(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    """The `d` of the area between two lines, one closed piece for each finite stretch."""
    known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    pieces = []
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        there = line_path(x[first:last], high[first:last])
        back = line_path(x[first:last][::-1], low[first:last][::-1])
        pieces.append(f"{there}L{back[1:]}Z")
    return "".join(pieces)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2, 2.5 or 5 times a power of ten) inside [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """A value with three significant digits, without an exponent where people would not write one."""
    if not math.isfinite(value):
        return "n/a"
    size = abs(value)
    if size >= 1e6 or (0 < size < 1e-3):
        return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")
    if size >= 1000:
        value = float(f"{value:.3g}")
    decimals = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{decimals}f}".replace("-", "−")


def steps(value: float) -> str:
    """A number of environment steps, such as "100k" or "1.5M"."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def tick_label(value: float) -> str:
    """A tick's value in the fewest characters."""
    text = steps(value) if abs(value) >= 10_000 else f"{value:.4g}"
    return text.replace("-", "−")


def _attribute(value: Any) -> str:
    return _short(value) if isinstance(value, float) else str(value)


def _short(value: float) -> str:
    text = f"{float(value):.1f}"
    return text[:-2] if text.endswith(".0") else text
