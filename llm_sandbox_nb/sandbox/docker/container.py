"""What is asked of the engine about one container. All of it but `put_file` blocks; callers use threads."""

from __future__ import annotations

import contextlib
import io
import secrets
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.sandbox.bootstrap import bootstrap_argv
from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.docker.engine import (
    PREFIX,
    connect,
    engine_errors,
    in_thread,
    lost_errors,
    one_line,
    unexpected,
)
from llm_sandbox_nb.sandbox.docker.host_network import closing_order
from llm_sandbox_nb.sandbox.docker.images import missing_image, unusable
from llm_sandbox_nb.sandbox.docker.network import (
    is_podman,
    network_changed,
    remove_own_network,
)
from llm_sandbox_nb.sandbox.docker.ownership import (
    LABEL_ID,
    adopted_name,
    container_name,
    current_owner,
    owner_labels,
    owner_of,
)
from llm_sandbox_nb.sandbox.docker.settings import (
    ContainerSettings,
    container_arguments,
    first_steps,
)
from llm_sandbox_nb.sandbox.errors import ImageError, SandboxError, SandboxLostError

LABEL_PROFILE = f"{PREFIX}.profile"
LABEL_ROOT = f"{PREFIX}.root"
CA_PATH = "/etc/ssl/llm-sandbox-nb-site.pem"
_APT_SETTINGS = "/etc/apt/apt.conf.d/90llm-sandbox-nb-site"
REMOVAL_TIMEOUT = 20
_has_quotas: dict[str, bool] = {}
"""For each engine (its URL), whether its storage may have quotas, as far as it is known."""


@dataclass(frozen=True)
class Container:
    """A container of ours: its id on the engine and our own name for it."""

    id: str
    sandbox_id: str
    profile: str
    directories: Directories


def create_container(settings: ContainerSettings, ca_bundle: Path | None, lease: float) -> Container:
    """Make a container, not yet started. It carries all its labels from the first moment.

    Raises:
        ImageError: the image is not there.
        NetworkChangedError: the network was removed meanwhile.
        SandboxError: the engine refuses.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError, ImageNotFound

    client = connect()
    sandbox_id = secrets.token_hex(6)
    argv = bootstrap_argv(steps=first_steps(settings, closing_order(settings.chosen_network)))
    labels = owner_labels(sandbox_id, lease, settings.labels)

    def make(quota: bool) -> dict[str, Any]:
        arguments = container_arguments(client, settings, argv, labels, quota=quota)
        made: dict[str, Any] = client.api.create_container(name=container_name(sandbox_id), **arguments)
        return made

    try:
        made = with_quota(client, make)
    except (APIError, SandboxError) as error:
        if is_podman(client):
            remove_own_network(client, sandbox_id)
        if isinstance(error, SandboxError):
            raise
        if isinstance(error, ImageNotFound):
            raise ImageError(missing_image(settings.image)) from error
        if "invalid reference" in one_line(error):
            raise ImageError(f"{settings.image!r} is no name of an image: correct it.") from error
        raise network_changed(error) or unexpected(error, "make a container") from error
    container = Container(made["Id"], sandbox_id, settings.profile, settings.directories)
    if ca_bundle is not None:
        try:
            _trust(container.id, ca_bundle)
        except BaseException:
            remove_container(container.id)
            raise
    return container


if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient


def with_quota(client: DockerClient, make: Callable[[bool], dict[str, Any]]) -> dict[str, Any]:
    """Make a container with `make(True)` where its storage can have a quota, else with `make(False)`.

    Other drivers than `overlay2` count the image too, so a quota there would not be the sandbox's own.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    engine = str(client.api.base_url)
    if engine not in _has_quotas:
        info = client.info()
        filesystem = dict(info.get("DriverStatus") or []).get("Backing Filesystem")
        _has_quotas[engine] = (info.get("Driver"), filesystem) == ("overlay2", "xfs")
    if not _has_quotas[engine]:
        return make(False)
    try:
        return make(True)
    except APIError as error:
        text = one_line(error).lower()
        if "storage-opt" not in text and "quota" not in text:
            raise
        _has_quotas[engine] = False
        return make(False)


def _trust(container: str, ca_bundle: Path) -> None:
    """Put a site's certificates into a container that has not started yet, also for apt."""
    from llm_sandbox_nb.sandbox.docker.api import APIError

    apt = f'Acquire::https::CAInfo "{CA_PATH}";\n'.encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in ((CA_PATH, ca_bundle.read_bytes()), (_APT_SETTINGS, apt)):
            member = tarfile.TarInfo(path.strip("/"))
            member.mode, member.size = 0o644, len(data)
            archive.addfile(member, io.BytesIO(data))
    try:
        connect().api.put_archive(container, "/", buffer.getvalue())
    except APIError as error:
        raise unexpected(error, "put certificates into a new container") from error


def start_container(container: str, image: str) -> None:
    """Start a container.

    Raises:
        ImageError: the image has no python3.
        NetworkChangedError: the network was removed meanwhile.
        SandboxError: the engine refuses.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    try:
        connect().api.start(container)
    except APIError as error:
        if "python3" in one_line(error):
            raise ImageError(unusable(image, ["python3"])) from error
        raise network_changed(error) or unexpected(error, "start a container") from error


def inspect_container(container: str) -> dict[str, Any]:
    """What the engine knows of a container.

    Raises:
        SandboxLostError: it is gone, or the engine is.
    """
    with lost_errors("its container is gone"):
        found: dict[str, Any] = connect().api.inspect_container(container)
    return found


def take_over(container_id: str) -> Container:
    """Check that a container may be adopted, and mark it as this process's.

    Raises:
        SandboxError: it is none of ours, or its owner may live.
        SandboxLostError: it has ended.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    found = inspect_container(container_id)
    labels: dict[str, str] = found["Config"].get("Labels") or {}
    owner = owner_of({"Labels": labels, "Names": [found.get("Name", "")]})
    if owner is None:
        raise SandboxError(f"The container {container_id[:12]} is no sandbox of {PREFIX}: name one that is.")
    if not owner.is_dead() and owner != current_owner():
        raise SandboxError(
            f"The sandbox {labels[LABEL_ID]} belongs to a process that may live: end that first."
        )
    if not found["State"].get("Running"):
        raise SandboxLostError(f"The sandbox {labels[LABEL_ID]} has ended; open a new one.")
    try:
        connect().api.rename(container_id, adopted_name(labels[LABEL_ID]))
    except APIError as error:
        if error.status_code != 400:
            raise SandboxLostError(f"The sandbox is lost: {one_line(error)}; open a new one.") from error
    root = labels.get(LABEL_ROOT, Directories().root)
    return Container(found["Id"], labels[LABEL_ID], labels.get(LABEL_PROFILE, "standard"), Directories(root))


def remove_container(container: str) -> None:
    """Remove a container with everything in it, and wait until it is gone."""
    from llm_sandbox_nb.sandbox.docker.api import APIError, NotFound

    client = connect()
    with engine_errors():
        own_network = _id_behind(client, container) if is_podman(client) else ""
        try:
            client.api.remove_container(container, force=True, v=True)
        except NotFound:
            pass
        except APIError as error:
            # 409: it is about to be removed already; 500: and the engine stumbled over that itself.
            if error.status_code not in (409, 500):
                raise unexpected(error, "remove a container") from error
            with contextlib.suppress(NotFound):
                client.api.wait(container, timeout=REMOVAL_TIMEOUT, condition="removed")
        if own_network:
            remove_own_network(client, own_network)


def _id_behind(client: DockerClient, container: str) -> str:
    """The sandbox in a container; nothing when that is gone."""
    from llm_sandbox_nb.sandbox.docker.api import APIError

    try:
        return str((client.api.inspect_container(container)["Config"].get("Labels") or {}).get(LABEL_ID, ""))
    except APIError:
        return ""


_PIECE = 64 * 1024
"""Bytes from which a piece is sent as it is: to put larger ones together takes longer than it saves."""


async def put_file(container: str, name: str, size: int, content: Iterator[bytes]) -> None:
    """Put a file of `size` bytes, root's, into the top folder of a running container.

    Raises:
        IsolationUnavailableError: no engine answers.
        SandboxError: the engine refuses, for instance because there is no room.
    """
    await in_thread(_put, container, _Archive(name, size, content))


def _put(container: str, archive: _Archive) -> None:
    from llm_sandbox_nb.sandbox.docker.api import APIError

    try:
        connect().api.put_archive(container, "/", archive)
    except APIError as error:
        raise unexpected(error, "put a file into a container") from error


class _Archive:
    """An archive with one file. Its length is known, so it is sent whole and not in many small chunks."""

    def __init__(self, name: str, size: int, content: Iterator[bytes]) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        self._head = member.tobuf(tarfile.GNU_FORMAT)
        self._content = content
        self._tail = bytes(-size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE)
        self._length = len(self._head) + size + len(self._tail)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        waiting, held = [self._head], len(self._head)
        for piece in self._content:
            if held + len(piece) > _PIECE:
                yield b"".join(waiting)
                waiting, held = [], 0
            waiting.append(piece)
            held += len(piece)
        yield b"".join((*waiting, self._tail))
