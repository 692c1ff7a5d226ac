"""`%sandbox key`: asks for the key of a model's provider in a password field, and forgets it again."""

from __future__ import annotations

import getpass
import shlex
import warnings

from IPython.core.error import StdinNotImplementedError

from llm_sandbox_nb.model.model_names import provider_of, providers
from llm_sandbox_nb.model.typed_keys import forget_keys, keep_key
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.sandbox.isolations import isolates

USAGE = "key [PROVIDER] [--forget]"
_NO_FIELD = (
    "Nobody can type a key here: set the variable of its provider, such as OPENAI_API_KEY, before the kernel "
    "starts, and name it with --api-key-env if it has another name."
)
_NO_PROVIDER = (
    "%sandbox key takes the name of a provider, as in %sandbox key openai. If you wrote the key itself there, "
    "remove it from the cell: notebooks and IPython's history keep what you write."
)


def key_command(rest: str, settings: SandboxSettings) -> None:
    """Ask for a key, or with `--forget` forget it. `rest` is what follows `%sandbox key`.

    Raises:
        SandboxUsageError: the line is wrong, nobody can type here, or what was typed is no key.
    """
    try:
        words = shlex.split(rest)
    except ValueError:
        raise SandboxUsageError(_NO_PROVIDER) from None
    named = [word for word in words if word != "--forget"]
    if len(named) > 1 or not set(named) <= providers():
        raise SandboxUsageError(_NO_PROVIDER)
    if "--forget" in words:
        forgotten = ", ".join(forget_keys(*named))
        print(f"Forgotten: the key for {forgotten}." if forgotten else "There was no typed key to forget.")
        return
    provider = named[0] if named else _usual_provider(settings)
    keep_key(provider, _asked(provider))
    print(
        f"Models of {provider} now use this key: in cells, benchmarks and solve(...) of this kernel. It is only in "
        "the kernel's memory, until the kernel ends or you run %sandbox key --forget."
    )
    if not isolates(settings.isolation):
        print("Commands of a model run as you here and could read it there: use a key with a small budget.")


def _usual_provider(settings: SandboxSettings) -> str:
    """The provider of the model that cells use; `openai` where they use none, or a scripted one."""
    return provider_of(settings.model, settings.api_base) or "openai"


def _asked(provider: str) -> str:
    """What the person types. Raises SandboxUsageError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)  # it would show what is typed
            key = getpass.getpass(f"Key for {provider}: ").strip()
    except (StdinNotImplementedError, getpass.GetPassWarning, EOFError):
        raise SandboxUsageError(_NO_FIELD) from None
    if not key:
        raise SandboxUsageError("No key was typed: run the cell again.")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SandboxUsageError("A key has no spaces and only plain characters: copy it again.")
    return key
