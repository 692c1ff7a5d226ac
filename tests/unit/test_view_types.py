"""The events as the view declares them in TypeScript are the events that the journal holds, name for name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from llm_sandbox_nb.trajectory import events as ev

SOURCE = (Path(__file__).parents[2] / "labextension/src/view/events.ts").read_text("utf-8")
BASE = "IEventBase"


def interfaces(source: str) -> dict[str, dict[str, str]]:
    """Each interface's fields with their types; those of the base are among them."""
    bare = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    found = re.findall(r"interface (\w+)(?: extends (\w+))? \{(.*?)\n\}", bare, re.S)
    own = {name: dict(re.findall(r"^\s*(\w+\??): (.+);$", body, re.M)) for name, _, body in found}
    return {name: {**own.get(parent, {}), **own[name]} for name, parent, _ in found}


def event_models() -> list[type[BaseModel]]:
    """Every kind of event that has a name."""
    (union, *_) = get_args(ev.Event)
    models = [get_args(tagged)[0] for tagged in get_args(union)]
    return [model for model in models if model is not ev.UnknownEvent]


MODELS = [*event_models(), ev.Blob, ev.Usage, ev.FileDiff, ev.ForkedFrom]
IN_TYPESCRIPT = interfaces(SOURCE)


def typescript_type(schema: dict[str, Any]) -> str:
    """The TypeScript for a part of a JSON schema."""
    if "$ref" in schema:
        return f"I{schema['$ref'].rsplit('/', 1)[1]}"
    if "const" in schema:
        return f"'{schema['const']}'"
    if "enum" in schema:
        return " | ".join(f"'{value}'" for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(map(typescript_type, schema["anyOf"]))
    if schema.get("type") == "array":
        return typescript_type(schema["items"]) + "[]"
    if schema.get("type") == "object":
        values = schema["additionalProperties"]
        return f"Record<string, {'unknown' if values is True else typescript_type(values)}>"
    names = {
        "integer": "number",
        "number": "number",
        "string": "string",
        "boolean": "boolean",
        "null": "null",
    }
    return names[schema["type"]]


def same_type(ours: str, theirs: str) -> bool:
    alternatives = {part.strip() for part in theirs.replace("Text", "string | IBlob").split("|")}
    return {part.strip() for part in ours.split("|")} == alternatives


def test_the_view_knows_all_kinds_and_no_others() -> None:
    ours = {f"I{model.__name__}" for model in MODELS}
    assert set(IN_TYPESCRIPT) - {BASE} == ours
    union = SOURCE.split("export type IEvent =")[1]
    assert set(re.findall(r"\| (\w+)", union)) == {f"I{model.__name__}" for model in event_models()}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_fields_are_the_same_both_ways(model: type[BaseModel]) -> None:
    theirs = IN_TYPESCRIPT[f"I{model.__name__}"]
    assert set(theirs) == set(model.model_fields), "names"
    for name, schema in model.model_json_schema(mode="serialization")["properties"].items():
        if (model, name) == (ev.RunFinished, "stop_reason"):
            assert theirs[name] == "string", "a later version may have more reasons"
            continue
        assert same_type(typescript_type(schema), theirs[name]), f"{name}: {typescript_type(schema)}"


def test_the_comparison_sees_a_difference() -> None:
    changed = interfaces(SOURCE.replace("exit_code: number | null", "exit_code: number"))
    schema = ev.CallFinished.model_json_schema()["properties"]["exit_code"]
    assert not same_type(typescript_type(schema), changed["ICallFinished"]["exit_code"])
    assert "finish_reason" not in interfaces(SOURCE.replace("finish_reason:", "reason:"))["IModelReplied"]
