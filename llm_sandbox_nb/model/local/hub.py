"""Fetching of a file from Hugging Face, with the cache, the settings and the token of huggingface_hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local.loading_progress import Share
from llm_sandbox_nb.model.local.store import FetchStoppedError, Stop, another_file, check_disk, known_sum

_SUM = re.compile(r"[0-9a-f]{64}")


def fetch_hub_file(repository: str, file: str, stop: Stop) -> Path:
    """Return the path of a cached file with the correct checksum. Fetch the file, or its missing part, if necessary.

    Raises:
        ModelError: if the file cannot be fetched, or differs from the file in the repository.
        FetchStoppedError: if `stop` is set.
    """
    import huggingface_hub
    from huggingface_hub import errors

    name = f"hf:{repository}/{file}"
    where: dict[str, Any] = {"endpoint": os.environ.get("HF_ENDPOINT") or None}
    try:
        planned = huggingface_hub.hf_hub_download(repository, file, dry_run=True, **where)
        if planned.will_download:
            check_disk(Path(planned.local_path).parent, planned.file_size, name, "HF_HOME")
        bar = _progress(f"Fetching {file}", planned.file_size, stop)
        path = Path(huggingface_hub.hf_hub_download(repository, file, tqdm_class=bar, **where))
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repository} gives its files only to people who have accepted its terms: accept them on its page, then "
            "call `hf auth login`.",
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
            f"{name} is not a file of Hugging Face: {_first_line(error)}", kind="not_found"
        ) from error
    except (FetchStoppedError, ModelError):
        raise
    except Exception as error:  # huggingface_hub may use any HTTP library
        raise _unreachable(name, error) from error
    _check_sum(path, name, stop)
    return path


def _check_sum(path: Path, name: str, stop: Stop) -> None:
    """Check a file in the cache, where a large file has its SHA-256 as its name. Small files are not checked.

    If the content has another SHA-256, delete the file and raise ModelError.
    """
    blob = path.parent / path.readlink() if path.is_symlink() else path
    if not _SUM.fullmatch(blob.name):
        return
    found = known_sum(path, name, stop)
    if found != blob.name:
        for place in (path.resolve(), blob, path):  # the blob may be a link to a file that repositories share
            place.unlink(missing_ok=True)
        raise another_file(name, found, blob.name)


def _progress(what: str, size: int, stop: Stop) -> type[Any]:
    """Make a progress bar class for huggingface_hub, which reports to `loading_progress` and prints nothing."""
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
        pass

    def flush(self) -> None:
        pass


def _unreachable(name: str, error: Exception) -> ModelError:
    return ModelError(
        f"{name} could not be fetched ({_first_line(error)}): check the network, then try again; the part that "
        "arrived is kept.",
        kind="setup",
    )


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
