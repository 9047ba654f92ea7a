"""The report's colours as CSS variables, once for light and once for dark, and the style sheet around them.

Lines take their colours from `LINES` in order. The hues follow Okabe and Ito (2008, "Color
Universal Design"), with lightness spread so that the lines stay apart under deuteranopia and
protanopia and keep a contrast of 3:1 with either page. Figures never name a colour: they carry
classes (`line-0`, `band-2`, `heat-7`), so one picture serves both themes and the printer.
"""

from importlib import resources
from typing import NamedTuple

HEAT_STEPS = 11
"""Shades of the heat-map scale, from lowest (0) to highest (10)."""


class Theme(NamedTuple):
    """One complete set of colours, each "#RRGGBB"."""

    page: str
    panel: str
    """Background of boxes and plots' label strips."""
    text: str
    quiet: str
    """Secondary text; at least 4.5:1 on the page."""
    rule: str
    """Hairlines of tables and boxes."""
    grid: str
    accent: str
    caution: str
    lines: tuple[str, ...]
    """One an arm, in order."""
    bands: tuple[str, ...]
    """One a configuration (origin), in order; backgrounds that text can stand on."""
    heat: tuple[str, str]
    """Lowest and highest end of the heat-map scale."""


LIGHT = Theme(
    page="#FFFFFF",
    panel="#F6F7F9",
    text="#16191D",
    quiet="#565D66",
    rule="#D5D9DF",
    grid="#E6E9ED",
    accent="#0B5CAD",
    caution="#8A4B00",
    lines=("#1174B4", "#B04400", "#29A077", "#984377", "#A5851D", "#023B51", "#5C0109"),
    bands=("#DFE6F2", "#F9E3DA", "#E4EFD9", "#EFE2F1", "#F6EFC9", "#D9F0F0", "#ECE6DF", "#E6E6E6"),
    heat=("#EEF3F9", "#0A3D75"),
)

DARK = Theme(
    page="#14171B",
    panel="#1C2026",
    text="#E8EAED",
    quiet="#A3ABB5",
    rule="#363C45",
    grid="#2A2F37",
    accent="#7DB8F5",
    caution="#F0B36B",
    lines=("#4FA6E9", "#E0692A", "#BEFBDF", "#C266A0", "#ECCA6C", "#ACE0FC", "#F4928A"),
    bands=("#232D40", "#40281F", "#263523", "#38283C", "#3A351D", "#1D3839", "#37312B", "#303236"),
    heat=("#1F2731", "#A9D5FF"),
)

LINES = len(LIGHT.lines)
"""How many arms can have a colour of their own."""

BANDS = len(LIGHT.bands)


def style_sheet() -> str:
    """The whole CSS of a report: both themes' variables, then the packaged rules."""
    rules = resources.files("perdure.report").joinpath("style.css").read_text(encoding="utf-8")
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{_variables(DARK)}}}\n"
    return f"{_variables(LIGHT)}{dark}{_classes()}{rules}"


def heat_colours(theme: Theme) -> list[tuple[str, str]]:
    """(background, text) of each step of the heat scale; the text is black or white, whichever reads better."""
    low, high = (_channels(end) for end in theme.heat)
    shades = []
    for step in range(HEAT_STEPS):
        share = step / (HEAT_STEPS - 1)
        mixed = "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in zip(low, high, strict=True))
        shades.append((mixed, max("#000000", "#FFFFFF", key=lambda text: contrast(text, mixed))))
    return shades


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours, 1 to 21 (WCAG 2, relative luminance)."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _variables(theme: Theme) -> str:
    plain = {
        name: getattr(theme, name) for name in ("page", "panel", "text", "quiet", "rule", "grid", "accent", "caution")
    }
    plain.update({f"line-{i}": colour for i, colour in enumerate(theme.lines)})
    plain.update({f"band-{i}": colour for i, colour in enumerate(theme.bands)})
    for i, (background, text) in enumerate(heat_colours(theme)):
        plain.update({f"heat-{i}": background, f"heat-text-{i}": text})
    body = "".join(f"--{name}: {value};\n" for name, value in plain.items())
    return f":root {{\n{body}}}\n"


def _classes() -> str:
    lines = "".join(f".line-{i} {{ --ink: var(--line-{i}); }}\n" for i in range(LINES))
    bands = "".join(f".band-{i} {{ --tint: var(--band-{i}); }}\n" for i in range(BANDS))
    heat = "".join(
        f".heat-{i} {{ background: var(--heat-{i}); color: var(--heat-text-{i}); }}\n" for i in range(HEAT_STEPS)
    )
    return lines + bands + heat


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    linear = [_linear(channel / 255) for channel in _channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
