"""Fetches a file of Hugging Face, through huggingface_hub: into its cache, with its settings and its token."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local.loading_progress import Share
from llm_sandbox_nb.model.local.store import FetchStoppedError, Stop, check_disk, known_sum

_SUM = re.compile(r"[0-9a-f]{64}")


def fetch_hub_file(repository: str, file: str, stop: Stop) -> Path:
    """The file in the cache; fetched, or the rest of it, when it is not there. Its checksum is right.

    Raises:
        ModelError: it cannot be fetched, or is not what the repository says.
        FetchStoppedError: nobody waits any more.
    """
    import huggingface_hub
    from huggingface_hub import errors

    name = f"hf:{repository}/{file}"
    where: dict[str, Any] = {"endpoint": os.environ.get("HF_ENDPOINT") or None}
    try:
        planned = huggingface_hub.hf_hub_download(repository, file, dry_run=True, **where)
        if planned.will_download:
            check_disk(Path(planned.local_path), planned.file_size, name)
        bar = _progress(f"Fetching {file}", planned.file_size, stop)
        path = Path(huggingface_hub.hf_hub_download(repository, file, tqdm_class=bar, **where))
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repository} gives its files only to those who accepted its terms: accept them on its page, then call "
            "`hf auth login`.",
            kind="authentication",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"Hugging Face has no repository {repository}, or it is private: check the name, or call `hf auth login`.",
            kind="not_found",
        ) from error
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _unreachable(name, error) from error
        raise ModelError(
            f"The repository {repository} has no file {file}: see `Files` on its page.",
            kind="not_found",
        ) from error
    except errors.HFValidationError as error:
        raise ModelError(
            f"{name} is no file of Hugging Face: {_first_line(error)}", kind="not_found"
        ) from error
    except FetchStoppedError:
        raise
    except Exception as error:  # of whatever HTTP library it uses
        raise _unreachable(name, error) from error
    _check_sum(path, name, stop)
    return path


def _check_sum(path: Path, name: str, stop: Stop) -> None:
    """Large files are stored under their SHA-256. Raises ModelError when one has another."""
    blob = path.resolve()
    if not _SUM.fullmatch(blob.name):
        return
    found = known_sum(blob, name, stop)
    if found != blob.name:
        blob.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise ModelError(
            f"What was fetched for {name} is another file (sha256 {found[:16]}..., and {blob.name[:16]}... was "
            "expected): it was removed; try again.",
            kind="setup",
        )


def _progress(what: str, size: int, stop: Stop) -> type[Any]:
    """What huggingface_hub shows its progress with."""
    from tqdm import tqdm

    share = Share(what, size)

    class _ShownProgress(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs |= {"disable": False, "file": _Nowhere()}
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            stop.check()
            result: bool | None = super().update(n)
            share.reached(int(self.n))
            return result

    return _ShownProgress


class _Nowhere:
    def write(self, text: str) -> None:
        """Drop it."""

    def flush(self) -> None:
        """Do nothing."""


def _unreachable(name: str, error: Exception) -> ModelError:
    return ModelError(
        f"{name} could not be fetched ({_first_line(error)}): check the network, then try again; what has come is "
        "kept.",
        kind="setup",
    )


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
