"""`llm-sandbox-nb image`: build, pull, list and check the images that sandboxes are made of."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from llm_sandbox_nb.cli import ENDED_WELL, SANDBOX_ERROR
from llm_sandbox_nb.cli.printer import harmless
from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.options.table import UsageError

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.images import ImageCheck


def image_command(arguments: argparse.Namespace) -> int:
    """Do what `image ACTION` asks.

    Raises:
        UsageError: a file named on the command line is missing.
    """
    from llm_sandbox_nb.sandbox.errors import SandboxError

    try:
        return _ACTIONS[arguments.action](arguments)
    except SandboxError as error:
        print(harmless(str(error)), file=sys.stderr)
        return SANDBOX_ERROR
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {error.filename}; check the path.") from error


def _build(arguments: argparse.Namespace) -> int:
    from llm_sandbox_nb.sandbox.docker.images import build_image

    name = build_image(
        arguments.target,
        arguments.tag,
        base_image=arguments.base_image,
        ca_bundle=arguments.ca_bundle,
        index_url=arguments.index_url,
        proxy=arguments.proxy,
        force=arguments.force,
        on_progress=_progress,
    )
    print(name)
    return ENDED_WELL


def _pull(arguments: argparse.Namespace) -> int:
    from llm_sandbox_nb.sandbox.docker.images import pull_image

    print(pull_image(arguments.image, on_progress=_progress))
    return ENDED_WELL


def _list(_: argparse.Namespace) -> int:
    from llm_sandbox_nb.sandbox.docker.images import list_images

    images = list_images()
    if not images:
        print("There are no images of ours on this engine; make one with `llm-sandbox-nb image build`.")
    for image in images:
        print(f"{image.name:<40} {format_size(image.size):>9}  {image.created[:16].replace('T', ' ')}")
    return ENDED_WELL


def _check(arguments: argparse.Namespace) -> int:
    from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE, check_image

    found = check_image(arguments.image or DEFAULT_IMAGE)
    if not found.usable:
        print(harmless(found.problem), file=sys.stderr)
        return SANDBOX_ERROR
    _describe(found)
    return ENDED_WELL


def _describe(found: ImageCheck) -> None:
    print(f"{found.name} ({format_size(found.size)}) can be used.")
    for title, versions in (("programs", found.programs), ("packages", found.packages)):
        print(harmless(f"{title}: " + ", ".join(f"{name} {version}" for name, version in versions.items())))
    if found.missing:
        print(f"not in it: {', '.join(found.missing)} (tasks that need them will install them or do without)")


def _progress(line: str) -> None:
    print(harmless(line), file=sys.stderr, flush=True)


_ACTIONS = {"build": _build, "pull": _pull, "list": _list, "check": _check}
