"""Exceptions of sandboxes. Each message is a sentence for the user, with the remedy if there is one."""

from __future__ import annotations

from llm_sandbox_nb.one_sentence import OneSentence


class SandboxError(OneSentence, Exception):
    """Base class of the exceptions of sandboxes."""


class IsolationUnavailableError(SandboxError):
    """The isolation does not work here: no engine, no `bwrap`, no user namespaces."""


class ImageError(SandboxError):
    """The image is missing, cannot be pulled or built, or has no bash or python3."""


class SandboxLostError(SandboxError):
    """The sandbox died or stopped answering, and cannot be used any more."""


class SandboxUserError(SandboxError):
    """A command requests a user that does not exist, or that the sandbox cannot switch to."""


class PolicyError(SandboxError):
    """A site's policy does not allow the request (isolation, image, network, number of sandboxes)."""


class TransferError(SandboxError):
    """An upload or download was refused or exceeded a limit; the message names the file and the reason."""


class OutputLimitExceededError(SandboxError):
    """A file is larger than the caller's limit; nothing was returned."""


class HistoryError(SandboxError):
    """A checkpoint, or the content of a file in a checkpoint, is missing or was dropped; or a history is unusable."""


class HistoryNotWrittenError(HistoryError):
    """This machine cannot write a history, for example because the disk is full. The sandbox is unchanged."""
