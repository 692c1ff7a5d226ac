"""Fills in what the pages of this folder take from the code: `python docs/reference.py` rewrites them.

Between `<!-- NAME: begin -->` and `<!-- NAME: end -->` stands what the function for NAME says. A test
compares, so that pages and code do not drift apart.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic_core import PydanticUndefined
from traitlets.config import Configurable

import llm_sandbox_nb.server
from llm_sandbox_nb.agent.control import frontends
from llm_sandbox_nb.cli.parser import make_parser
from llm_sandbox_nb.notebook.magics import SandboxMagics
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
from llm_sandbox_nb.sandbox.network.policy import NAMED_SETS
from llm_sandbox_nb.server.manager import SandboxManager
from llm_sandbox_nb.server.policy import SandboxPolicy
from llm_sandbox_nb.server.runs import RunRegistry
from llm_sandbox_nb.training.config import documented_keys
from llm_sandbox_nb.trajectory import events
from llm_sandbox_nb.trajectory.doubts.rules import RULES

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from error_sentences import collected  # noqa: E402

_SHORTEST, _LONGEST = 3, 85
"""Words of a sentence that is listed: fewer are a part of another sentence, more are a help text."""
_BLOCK = re.compile(r"(<!-- ((?!table)\w+): begin -->\n).*?(<!-- \2: end -->)", re.DOTALL)


def traits(*classes: type[Configurable]) -> str:
    """Every setting of the classes, as a table."""
    lines = ["| setting | default | |", "|---|---|---|"]
    for one in classes:
        for name, trait in sorted(one.class_own_traits(config=True).items()):
            owner = SandboxMagics if issubclass(SandboxMagics, one) else one
            setting, default = f"{owner.__name__}.{name}", trait.default_value_repr()
            lines.append(f"| `{setting}` | `{default}` | {_cell(trait.help)} |")
    return "\n".join(lines)


def options() -> str:
    """The options of `%%sandbox`, as a table."""
    lines = ["| option | |", "|---|---|"]
    for action in SandboxMagics.sandbox_cell.parser._actions:
        if action.option_strings and action.help:
            names = " ".join(f"`{name}`" for name in action.option_strings)
            lines.append(f"| {names} | {_cell(action.help)} |")
    return "\n".join(lines)


def isolations() -> str:
    """The registry of isolations: what each needs, and what its checkpoints keep."""
    lines = ["| isolation | what to do so that it works | checkpoints |", "|---|---|---|"]
    for one in ISOLATIONS.values():
        lines.append(f"| `{one.name}` | {_cell(one.install_hint)} | {_cell(one.checkpoints)} |")
    return "\n".join(lines)


def allowed_sets() -> str:
    """The words of a list of allowed hosts, with their hosts."""
    lines = ["| word | hosts |", "|---|---|"]
    lines += [
        f"| `{name}` | {', '.join(f'`{host}`' for host in hosts)} |" for name, hosts in NAMED_SETS.items()
    ]
    return "\n".join(lines)


def subcommands() -> str:
    """What `%sandbox` explains of itself."""
    _, _, listed = inspect.cleandoc(SandboxMagics.sandbox_line.__doc__ or "").partition("\n\n")
    return f"```text\n{listed}\n```"


def training() -> str:
    """Every key of a training's configuration, as a table."""
    lines = ["| key | default | |", "|---|---|---|"]
    lines += [f"| `{name}` | `{default}` | {_cell(text)} |" for name, default, text in documented_keys()]
    return "\n".join(lines)


def commands() -> str:
    """Every command of the command line with its arguments and flags."""
    parser, made = make_parser()
    help_of = dict(_help_of(parser, ""))
    parts = []
    for name, one in made.items():
        if not name:
            continue
        needed = [
            action for action in one._actions if not action.option_strings and action.metavar != "ACTION"
        ]
        words = [
            str(action.metavar) for action in needed if not isinstance(action, argparse._SubParsersAction)
        ]
        lines = [f"## {name}", "", f"{_sentence(help_of[name])}", ""]
        flags = list(_flags(one))
        if not flags and not words:
            inside = [f"[`{other}`](#{_anchor(other)})" for other in made if other.rpartition(" ")[0] == name]
            lines += [f"Actions: {', '.join(inside)}.", ""] if inside else ["It takes no flags.", ""]
        else:
            lines += ["| | |", "|---|---|", *flags, ""]
        parts.append("\n".join(lines))
    return "\n".join(parts).rstrip()


def _help_of(parser: argparse.ArgumentParser, before: str) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield f"{before}{choice.dest}", choice.help or ""
            for name, inside in action.choices.items():
                yield from _help_of(inside, f"{before}{name} ")


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A row for each argument and flag; of a flag's spellings those with `_`, and the dashes that differ in no more."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction | argparse._VersionAction):
            continue
        text = (action.help or "").replace("%%", "%")
        if not action.option_strings:
            yield f"| `{action.metavar}` | {_cell(text)} |"
            continue
        names: dict[str, str] = {}
        for spelling in action.option_strings:
            names.setdefault(spelling.replace("_", "-"), spelling)
        value = (
            " " + (str(action.metavar or "") or ",".join(action.choices or ())) if action.nargs != 0 else ""
        )
        value = value.rstrip()
        first, *others = names.values()
        shown = [f"`{first}{value}`", *(f"`{other}`" for other in others)]
        yield f"| {' '.join(shown)} | {_cell(text)} |"


_SPEC: dict[str, Any] = yaml.safe_load(
    Path(llm_sandbox_nb.server.__file__).with_name("rest-api.yml").read_text("utf-8")
)
_VERBS = ("get", "post", "put", "delete")


def routes() -> str:
    """Every route of the OpenAPI file: what it takes and answers."""
    parts = []
    for path, item in _SPEC["paths"].items():
        for verb in _VERBS:
            if verb not in item:
                continue
            route = item[verb]
            parts += [f"### {verb.upper()} {path}", "", _sentence(route["summary"]), ""]
            if "description" in route:
                parts += [" ".join(route["description"].split()), ""]
            given = [_resolved(one) for one in (*item.get("parameters", ()), *route.get("parameters", ()))]
            body = route.get("requestBody")
            if given or body:
                parts += ["| takes | in | type | |", "|---|---|---|---|"]
                for one in given:
                    needed = ", required" if one.get("required") and one["in"] != "path" else ""
                    kind = f"{one['in']} | {_type(one['schema'])}{needed}"
                    parts.append(f"| `{one['name']}` | {kind} | {_cell(one.get('description', ''))} |")
                if body:
                    kind, content = next(iter(body["content"].items()))
                    parts.append(f"| the body | {kind} | {_type(content['schema'])} | |")
                parts.append("")
            parts += ["| answer | content | |", "|---|---|---|"]
            for code, answer in route["responses"].items():
                said = _resolved(answer)
                kinds = said.get("content", {})
                content = _type(next(iter(kinds.values()))["schema"]) if kinds else ""
                parts.append(f"| {code} | {content} | {_cell(said['description'])} |")
            parts.append("")
    return "\n".join(parts).rstrip()


def schemas() -> str:
    """The objects that the routes take and give."""
    parts = []
    for name, schema in _SPEC["components"]["schemas"].items():
        parts += [f"### {name}", "", "| field | type | |", "|---|---|---|"]
        for field, one in schema["properties"].items():
            needed = "" if field in schema.get("required", ()) else ", optional"
            parts.append(
                f"| `{field}` | {_type(one)}{needed} | {_cell(_resolved(one).get('description', ''))} |"
            )
        parts.append("")
    return "\n".join(parts).rstrip()


def _resolved(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the OpenAPI file that a reference means."""
    reference = part.get("$ref")
    if reference is None:
        return part
    found: Any = _SPEC
    for word in reference.removeprefix("#/").split("/"):
        found = found[word]
    return found  # type: ignore[no-any-return]


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in words, with a link to the object that it means."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    null = " or null" if schema.get("nullable") else ""
    for key in ("allOf", "oneOf", "anyOf"):
        if key in schema:
            return " and ".join(_type(one) for one in schema[key]) + null
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"]) + null
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}{null}"
    if schema.get("type") == "object" and "properties" in schema:
        return "object with " + ", ".join(
            f"`{name}` ({_type(one)})" for name, one in schema["properties"].items()
        )
    bounds = [
        f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema
    ]
    default = [f"default {schema['default']}"] if "default" in schema else []
    more = f" ({', '.join([*bounds, *default])})" if bounds or default else ""
    return f"{schema.get('format', schema.get('type', 'any'))}{null}{more}"


def event_kinds() -> str:
    """Every kind of event with its fields, after the parts that events share."""
    parts = ["## Fields of every event", "", *_fields(events.EventBase, ()), "## Kinds", ""]
    for event in get_args(events.KnownEvent):
        kind = event.model_fields["kind"].default
        more = " It is shown live and not written to the journal." if kind in events.TRANSIENT else ""
        parts += [
            f"### {kind}",
            "",
            _doc(event) + more,
            "",
            *_fields(event, ("id", "parent", "time", "kind")),
        ]
    parts += ["## Parts of events", ""]
    for part in (events.Usage, events.FileDiff, events.Blob, events.ForkedFrom):
        parts += [f"### {part.__name__}", "", _doc(part), "", *_fields(part, ())]
    return "\n".join(parts).rstrip()


def _doc(event: type[events.EventModel]) -> str:
    return _paragraphs(inspect.getdoc(event) or "")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(one.split()) for one in text.split("\n\n"))


def _fields(event: type[events.EventModel], without: tuple[str, ...]) -> list[str]:
    """The table of a model's fields, with the texts that stand below them in the source."""
    said = {}
    body = ast.parse(inspect.getsource(event)).body[0].body  # type: ignore[attr-defined]
    for pair in itertools.pairwise(body):
        match pair:
            case ast.AnnAssign(target=target), ast.Expr(value=ast.Constant(value=str(text))):
                said[ast.unparse(target)] = text
    written = {
        ast.unparse(field.target): ast.unparse(field.annotation)
        for field in body
        if isinstance(field, ast.AnnAssign)
    }
    lines = []
    for name, field in event.model_fields.items():
        if name in without:
            continue
        if field.default is not PydanticUndefined:
            default = f"`{field.default!r}`"
        else:
            default = "made" if name in ("id", "time") else "empty" if field.default_factory else "required"
        lines.append(f"| `{name}` | `{_cell(written[name])}` | {default} | {_cell(said.get(name, ''))} |")
    return ["| field | type | default | |", "|---|---|---|---|", *lines, ""] if lines else []


def doubt_rules() -> str:
    """The rules about doubts, with when they fire."""
    rows = [f"| {one.name} | {_cell((inspect.getdoc(one.rule) or '').rstrip('.'))} |" for one in RULES]
    return "\n".join(["| rule | fires when |", "|---|---|", *rows])


def prompt_commands() -> str:
    """The commands at the prompt of a pause."""
    return f"```text\n{frontends.HELP}\n```"


def errors(first: bool) -> str:
    """The sentences of errors by area, each with what to do: those that users meet first, or the others."""
    advice = tomllib.loads((HERE / "advice.toml").read_text("utf-8"))
    areas, beginnings = advice["area"], tuple(advice["first"])
    places = {place: area for area in areas for place in area["files"]}
    rows: dict[str, dict[str, str]] = {area["title"]: {} for area in areas}
    for path, texts in collected().items():
        fitting = [place for place in places if path.startswith(place)]
        if not fitting:
            raise KeyError(f"docs/advice.toml says nothing about the errors of {path}: add it to an area.")
        place = max(fitting, key=len)
        area = places[place]
        own = area.get("sentences", {})
        for text in texts:
            said = [own[start] for start in own if text.startswith(start)]
            if text.startswith(beginnings) is first and _SHORTEST <= len(text.split()) <= _LONGEST:
                rows[area["title"]].setdefault(text, (said or [area["files"][place]])[0])
    known = [text for found in rows.values() for text in found] if first else beginnings
    if lost := [one for one in beginnings if not any(text.startswith(one) for text in known)]:
        raise KeyError(f"No sentence begins like this any more, see docs/advice.toml: {lost}")
    parts = []
    for area in areas:
        if found := sorted(rows[area["title"]].items()):
            parts += [f"## {area['title']}", "", area["intro"], "", "| sentence | what to do |", "|---|---|"]
            parts += [f"| {_literal(text)} | {_cell(advice)} |" for text, advice in found]
            parts.append("")
    return "\n".join(parts).rstrip()


def original_differences() -> str:
    """What this package does differently from the paper's own, and why: a table for each part."""
    found = tomllib.loads((HERE / "original-differences.toml").read_text("utf-8"))["difference"]
    lines: list[str] = []
    for part, rows in itertools.groupby(found, lambda one: one["part"]):
        lines += [f"### {part}", "", "| | `llm-in-sandbox` 0.2.0 | this package | why |", "|---|---|---|---|"]
        lines += [
            f"| {' | '.join(_cell(row[key]) for key in ('about', 'there', 'here', 'why'))} |" for row in rows
        ]
        lines.append("")
    return "\n".join(lines).rstrip()


def _literal(text: str) -> str:
    """A text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}<>\[\]|$~#])", r"\\\1", text)


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


BLOCKS: dict[str, Callable[[], str]] = {
    "traits": lambda: traits(SandboxPolicy, SandboxManager, RunRegistry),
    "settings": lambda: traits(SandboxSettings),
    "options": options,
    "subcommands": subcommands,
    "isolations": isolations,
    "allowed_sets": allowed_sets,
    "training": training,
    "commands": commands,
    "routes": routes,
    "schemas": schemas,
    "events": event_kinds,
    "doubts": doubt_rules,
    "prompt": prompt_commands,
    "original_differences": original_differences,
    "first_errors": lambda: errors(first=True),
    "errors": lambda: errors(first=False),
}


def filled(page: str) -> str:
    """The page with its blocks as the code has them now."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n\n{match[3]}", page)


def main() -> None:
    """Rewrite the pages that have blocks."""
    for path in sorted(HERE.rglob("*.md")):
        text = path.read_text("utf-8")
        if (new := filled(text)) != text:
            path.write_text(new, "utf-8")
            print(f"rewrote {path.relative_to(HERE)}")


if __name__ == "__main__":
    main()
