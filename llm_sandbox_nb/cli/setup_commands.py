"""`llm-sandbox-nb image | doctor | models | settings`: commands for images, isolations, models and settings."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from importlib import metadata

from llm_sandbox_nb.cli import ENDED_WELL, FAILED, MODEL_ERROR, SANDBOX_ERROR
from llm_sandbox_nb.cli.printer import harmless
from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.options.table import FILE_SETTINGS, UsageError
from llm_sandbox_nb.options.values import resolve_sources, settings_json, settings_text


def image_command(arguments: argparse.Namespace) -> int:
    """Build, pull, list or check the images of sandboxes.

    Raises:
        UsageError: if a file named on the command line is missing.
    """
    from llm_sandbox_nb.sandbox.docker.images import build_image, list_images, pull_image
    from llm_sandbox_nb.sandbox.errors import SandboxError

    def tell(line: str) -> None:
        print(harmless(line), file=sys.stderr, flush=True)

    try:
        match arguments.action:
            case "build":
                name = build_image(
                    arguments.target,
                    arguments.tag,
                    base_image=arguments.base_image,
                    ca_bundle=arguments.ca_bundle,
                    index_url=arguments.index_url,
                    proxy=arguments.proxy,
                    force=arguments.force,
                    on_progress=tell,
                )
                print(name)
            case "pull":
                print(pull_image(arguments.image, on_progress=tell))
            case "list":
                images = list_images()
                if not images:
                    print(
                        "This engine has no image of this package; make one with `llm-sandbox-nb image build`."
                    )
                for image in images:
                    created = image.created[:16].replace("T", " ")
                    print(f"{image.name:<40} {format_size(image.size):>9}  {created}")
            case "check":
                return _check_image(arguments.image)
    except SandboxError as error:
        print(harmless(str(error)), file=sys.stderr)
        return SANDBOX_ERROR
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {error.filename}; check the path.") from error
    return ENDED_WELL


def _check_image(name: str | None) -> int:
    from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE, check_image

    found = check_image(name or DEFAULT_IMAGE)
    if not found.usable:
        print(harmless(found.problem), file=sys.stderr)
        return SANDBOX_ERROR
    print(f"{found.name} ({format_size(found.size)}) can be used.")
    for title, versions in (("programs", found.programs), ("packages", found.packages)):
        print(harmless(f"{title}: " + ", ".join(f"{name} {version}" for name, version in versions.items())))
    if found.missing:
        print(f"missing: {', '.join(found.missing)} (tasks that need these will install them or do without)")
    return ENDED_WELL


def doctor_command(_: argparse.Namespace) -> int:
    """Print which isolations work here, then the state of local models and of the view.

    An isolation works if a sandbox with the defaults opens. Remains of killed processes are removed first. Return 0 if
    `auto` finds an isolation and the installed LiteLLM is not a malicious release.
    """
    from llm_sandbox_nb.card.export import NO_VIEW, has_view
    from llm_sandbox_nb.model.litellm_transport import compromised_version
    from llm_sandbox_nb.model.local.listing import local_models
    from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
    from llm_sandbox_nb.sandbox.open import remove_leftovers

    remove_leftovers()

    async def try_all() -> list[str]:
        return await asyncio.gather(*(_why_it_fails(name) for name in ISOLATIONS))

    problems = dict(zip(ISOLATIONS, asyncio.run(try_all()), strict=True))
    for name, problem in problems.items():
        isolation = ISOLATIONS[name]
        print(f"{name:<11} {f'does not work here: {problem}' if problem else 'works'}")
        if problem:
            print(f"{'':<11} what to do: {isolation.install_hint}")
        if not isolation.automatic:
            what = "" if isolation.isolates else "it isolates nothing; "
            print(f"{'':<11} {what}it is only used when asked for by name")
    print(f"{'local':<11} {local_models()}")
    print(f"{'view':<11} {'works' if has_view() else NO_VIEW}")
    for sentence in old_front_ends():
        print(f"{'':<11} {sentence}")
    chosen = next((name for name in problems if ISOLATIONS[name].automatic and not problems[name]), None)
    if malicious := compromised_version():
        print(malicious, file=sys.stderr)
        return FAILED
    if chosen:
        print(f"\nWithout --isolation, runs here use {chosen}.")
        return ENDED_WELL
    print("No isolation works here; see the lines above.", file=sys.stderr)
    return SANDBOX_ERROR


async def _why_it_fails(isolation: str) -> str:
    """Open a sandbox with default options. Return the reason of a failure without a full stop, or an empty text."""
    from llm_sandbox_nb.sandbox.errors import SandboxError
    from llm_sandbox_nb.sandbox.open import load_isolation, open_sandbox

    if problem := await load_isolation(isolation).why_unavailable(None):
        return problem
    try:
        async with open_sandbox(isolation) as sandbox:
            await sandbox.run("true")
    except SandboxError as error:
        return str(error).rstrip(".")
    return ""


OLDEST_FRONT_ENDS = {"jupyterlab": ("JupyterLab", "4.4"), "notebook": ("Notebook", "7.4")}
"""Oldest supported releases, as in labextension/package.json and tests/versions.py."""


def old_front_ends() -> list[str]:
    """Return a warning for each front end in this environment that is too old for the view."""
    sentences = []
    for distribution, (name, oldest) in OLDEST_FRONT_ENDS.items():
        try:
            found = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
        if numbers < tuple(map(int, oldest.split("."))):
            sentences.append(
                f"{name} {found} is too old for the view, which needs {oldest} or later: "
                f"pip install '{distribution}>={oldest}'"
            )
    return sentences


def models_command(arguments: argparse.Namespace) -> int:
    """List the local models by name, or download a model and print the path of its file."""
    from llm_sandbox_nb.model.contract import ModelError
    from llm_sandbox_nb.model.local.listing import fetch_model, models_json, models_text

    try:
        if arguments.fetch is not None:
            print(harmless(str(fetch_model(arguments.fetch))))
        else:
            print(json.dumps(models_json(), indent=2) if arguments.json else harmless(models_text()))
    except ModelError as error:
        print(harmless(str(error)), file=sys.stderr)
        return MODEL_ERROR
    return ENDED_WELL


def settings_command(arguments: argparse.Namespace) -> int:
    """Print the settings as a table or as JSON.

    Raises:
        UsageError: if a settings file or a variable cannot be understood.
    """
    values, files = resolve_sources({"settings": arguments.settings}, os.environ, FILE_SETTINGS)
    if arguments.json:
        print(json.dumps(settings_json(values, files), indent=2))
    else:
        print(harmless(settings_text(values, files, os.environ)))
    return ENDED_WELL
