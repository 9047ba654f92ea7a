"""Commands that let a person play: play concierge."""

import io
import json
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from perdure.core import jsontext
from perdure.core.errors import ConfigError, PerdureError, nearest
from perdure.worlds.concierge.records import KINDS, LANGUAGES

HELP = """\
TOOL name=value ...      call a tool, such as: airline.search from=BLR to=DEL date=2026-05-01
say WORDS                tell the user something        ask WORDS            ask the user
probe VENDOR             a vendor's present schema      report VENDOR KIND   report a changed contract
submit PROBABILITY       end the errand                 abort                give up
{"tool": ...}            any action as JSON; one that is none costs the turn
? TOOL                   a tool's arguments             ?                    this help and the tools
quit                     leave"""
WORDS = ("say", "ask", "probe", "report", "submit", "abort")
PROMPT = "> "
_VALUE = re.compile(r"\s+(?=[A-Za-z_]\w*=)")

group = typer.Typer(
    help="Play a world in the terminal.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@group.callback()
def _options() -> None:
    """Play a world in the terminal."""


@group.command()
def concierge(
    seed: Annotated[int | None, typer.Option(min=0, help="Which errand; a random one if unset.")] = None,
    stage: Annotated[int, typer.Option(min=1, max=3, help="1: nothing drifts, 2: one drift, 3: two.")] = 2,
    language: Annotated[
        str | None, typer.Option(help=f"The user's language: {', '.join(LANGUAGES)}; any if unset.")
    ] = None,
    oracle: Annotated[bool, typer.Option("--oracle", help="Watch the expert do it.")] = False,
) -> None:
    """Be the concierge: carry out a user's errand while vendors change their contracts.

    Reads one action a line, from the terminal or from a pipe; ? tells how they are written.

    \b
    Examples:
      perdure play concierge
      perdure play concierge --seed 3 --stage 3 --language hinglish
      perdure play concierge --seed 3 --oracle
      echo 'submit 0.1' | perdure play concierge --seed 3
    """
    from perdure.worlds.concierge.world import Concierge

    if language is not None and language not in LANGUAGES:
        raise ConfigError(f"--language is {language!r}; {nearest(language, LANGUAGES)}")
    params = {"stage": stage} | ({} if language is None else {f"language_{language}": 1.0})
    game = _Game(Concierge(params, observations="structured"), secrets.randbelow(10**6) if seed is None else seed)
    game.play(game.expert if oracle else game.asked)


class _Game:
    """One errand on a screen."""

    def __init__(self, world: Any, seed: int):
        from rich.console import Console

        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # Of a terminal that lacks a script, the rest is still shown.
        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        self._world = world
        self._seen, _ = world.reset(seed=seed)
        named = {_name(tool["function"]["name"], world): tool["function"] for tool in world.tools()}
        self._tools = {name: tool for name, tool in named.items() if "." in name}
        self._say(f"Errand {seed}, {world.task.now}. ? for help.", "dim")

    def play(self, next_action: Callable[[], str | None]) -> None:
        """Go on until the errand ends or nobody says anything more."""
        over, reward, info = False, 0.0, {}
        self._show()
        while not over:
            said = next_action()
            if said is None:
                self._say("You left; the errand has no score.", "dim")
                return
            self._seen, reward, over, _, info = self._world.step(said)
            self._show()
        self._result(reward, info)

    def expert(self) -> str:
        """What the oracle does, shown as it would be typed."""
        said = self._world.expert()
        self._say(f"{PROMPT}{said}", "cyan")
        return said

    def asked(self) -> str | None:
        """What the person does next, as JSON; None at the end of the input."""
        if sys.stdin is None:  # Closed by whoever began the command.
            return None
        while True:
            try:
                line = self._console.input(PROMPT).strip()
            except EOFError:
                return None
            if line in ("quit", "exit"):
                return None
            if line.startswith("?"):
                self._help(line[1:].strip())
            elif line:
                try:
                    return meant(line, self._tools)
                except PerdureError as error:
                    self._say(f"{error}", "yellow")

    def _show(self) -> None:
        seen = self._seen
        if seen["error"]:
            self._say(f"Invalid action: {seen['error']}", "red")
        if seen["tool"]:
            self._say(f"{seen['tool']}: {seen['status']} ({seen['schema_version']})", "bold")
            self._say(json.dumps(json.loads(seen["response"]), ensure_ascii=False, indent=2, sort_keys=True))
        if seen["user"]:
            self._say(f"User ({seen['language']}): {seen['user']}", "bold green")
        self._say(f"Turns left: {seen['budget_remaining']}", "dim")

    def _help(self, name: str) -> None:
        if not name:
            self._say(HELP)
            self._say("Tools: " + ", ".join(self._tools))
        elif name in self._tools:
            tool = self._tools[name]
            required = tool["parameters"].get("required", ())
            self._say(f"{name}: {tool['description']}", "bold")
            for argument, schema in tool["parameters"]["properties"].items():
                self._say(f"  {argument}{'' if argument in required else '?'}: {json.dumps(schema)}")
        else:
            self._say(f"There is no tool {name!r}; {nearest(name, self._tools)}", "yellow")

    def _result(self, reward: float, info: Mapping[str, Any]) -> None:
        from rich.table import Table

        ended = info["trace"]["ended"].lower()
        drifts = ", ".join(info["trace"]["drifts"]) or "none"
        self._say(f"{'Done' if info['success'] else 'Not done'} ({ended}). Drifts: {drifts}.", "bold")
        table = Table("measure", "value")
        for name, value in {**info["reward_components"], "reward": reward}.items():
            table.add_row(name, f"{value:.3f}")
        self._console.print(table)

    def _say(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style)


def meant(line: str, tools: Mapping[str, Any]) -> str:
    """A typed line as the world's JSON; ConfigError, which costs no turn, for one that is no form of HELP."""
    if line.startswith("{"):
        return line
    word, _, rest = line.partition(" ")
    rest = rest.strip()
    if word in tools:
        types = tools[word]["parameters"]["properties"]
        arguments = [_argument(part, types) for part in (_VALUE.split(rest) if rest else [])]
        if len(dict(arguments)) < len(arguments):
            raise ConfigError("an argument is given twice; give each once")
        return json.dumps({"tool": word, "args": dict(arguments)}, ensure_ascii=False)
    vendors = {name.partition(".")[0] for name in tools}
    if (word in ("say", "ask") and rest) or (word == "probe" and rest in vendors):
        return json.dumps({word: rest}, ensure_ascii=False)
    if word == "report" and len(rest.split()) == 2:
        vendor, kind = rest.split()
        if vendor in vendors and kind in KINDS:
            return json.dumps({"report": vendor, "kind": kind})
    if word == "submit" and re.fullmatch(r"\d*\.?\d+", rest) and float(rest) <= 1:
        return json.dumps({"submit": float(rest)})
    if word == "abort" and not rest:
        return json.dumps({"abort": True})
    if word in WORDS:
        raise ConfigError(
            f"{word} takes something else; ? for help (vendors are {', '.join(sorted(vendors))}, kinds of a report "
            f"{', '.join(KINDS)})"
        )
    raise ConfigError(f"{word!r} is no action ({nearest(word, [*tools, *WORDS])}); ? for help")


def _argument(text: str, types: Mapping[str, Any]) -> tuple[str, Any]:
    """name=value; a value that need not be text is read as JSON where it is some."""
    name, given, value = text.partition("=")
    if not given:
        raise ConfigError(f"{text!r} is no argument; write name=value")
    if types.get(name, {}).get("type") == "string":
        return name, value
    try:
        return name, jsontext.loads(value)
    except ValueError:
        return name, value


def _name(function: str, world: Any) -> str:
    """A tool's name as vendors write it: with a dot behind the vendor."""
    vendor, _, verb = function.partition("_")
    return f"{vendor}.{verb}" if vendor in world.catalogue.domains else function
