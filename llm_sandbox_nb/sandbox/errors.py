"""Exceptions that sandboxes raise. `llm_sandbox_nb.errors` shows the tree of the package's exceptions."""

from __future__ import annotations

from llm_sandbox_nb.errors import LLMSandboxError


class SandboxError(LLMSandboxError):
    """Base class of the exceptions of sandboxes: a sandbox cannot be opened, or one of its methods has failed.

    For example, use another isolation if no container can be started::

        try:
            box = await open_sandbox("docker")
        except SandboxError:
            box = await open_sandbox("bubblewrap")
    """


class IsolationUnavailableError(SandboxError):
    """The chosen isolation does not work on this machine. No sandbox was opened.

    For example, `open_sandbox("docker")` on a machine without a Docker engine.
    """


class ImageError(SandboxError):
    """The image is missing, cannot be pulled or built, or has no bash or python3. No sandbox was opened.

    For example, `open_sandbox("docker", image="no-such-image")`.
    """


class SandboxLostError(SandboxError):
    """The sandbox died or stopped answering. Every further call raises this error, so open a new sandbox.

    For example, `box.run("ls")` after `box.close()`.
    """


class SandboxUserError(SandboxError):
    """The sandbox cannot run a command as the requested user."""


class PolicyError(SandboxError):
    """The site's policy does not allow the requested isolation, image, network or number of sandboxes."""


class TransferError(SandboxError):
    """An upload or download was refused or exceeded a limit. The message names the file and the reason.

    For example, `box.upload("/dev/null", "input")`: a device is neither a file nor a folder.
    """


class OutputLimitExceededError(SandboxError):
    """A file is larger than the caller's limit; nothing was returned."""


class HistoryError(SandboxError):
    """A checkpoint or a file of a checkpoint is missing, or the history is unusable. The sandbox's files are unchanged.

    For example, `box.restore("no-such-checkpoint")`.
    """


class HistoryNotWrittenError(HistoryError):
    """The history cannot be written, for example because the disk is full. The sandbox is unchanged."""
