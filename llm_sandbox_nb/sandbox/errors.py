"""Every exception a sandbox raises. Each message is one sentence that says what to do."""

from __future__ import annotations

from llm_sandbox_nb.one_sentence import OneSentence


class SandboxError(OneSentence, Exception):
    """Base of everything the sandbox room raises on purpose."""


class IsolationUnavailableError(SandboxError):
    """The isolation asked for cannot work here: no engine, no `bwrap`, no user namespaces."""


class ImageError(SandboxError):
    """The image is missing, cannot be pulled or built, or has no bash or python3."""


class SandboxLostError(SandboxError):
    """The sandbox died or stopped answering; nothing more can be done with it."""


class SandboxUserError(SandboxError):
    """A command was to run as a user the sandbox cannot switch to."""


class PolicyError(SandboxError):
    """A site's policy does not allow what was asked for (isolation, image, network, number of sandboxes)."""


class TransferError(SandboxError):
    """An upload or download was refused or went over its limits; says which member and why."""


class OutputLimitExceededError(SandboxError):
    """A file is larger than the caller's limit; nothing was returned."""


class HistoryError(SandboxError):
    """A checkpoint, or the content of a file at it, is not there (any more); or a history cannot be used."""


class HistoryNotWrittenError(HistoryError):
    """This machine cannot write a history: its disk is full, for example. The sandbox is as it was."""
