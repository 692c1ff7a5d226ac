"""Requests to the engine about one container. All functions except `put_file` block, so call them in threads."""

from __future__ import annotations

import contextlib
import io
import secrets
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from llm_sandbox_nb.sandbox.docker.network import is_podman, network_changed, remove_own_network
from llm_sandbox_nb.sandbox.docker.ownership import (
    LABEL_ID,
    adopted_name,
    container_name,
    current_owner,
    labelled_name,
    owner_labels,
    owner_of,
)
from llm_sandbox_nb.sandbox.docker.settings import ContainerSettings, container_arguments, first_steps
from llm_sandbox_nb.sandbox.errors import ImageError, SandboxError, SandboxLostError

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

LABEL_PROFILE = f"{PREFIX}.profile"
LABEL_ROOT = f"{PREFIX}.root"
CA_PATH = "/etc/ssl/llm-sandbox-nb-site.pem"
_APT_SETTINGS = "/etc/apt/apt.conf.d/90llm-sandbox-nb-site"
REMOVAL_TIMEOUT = 20
"""Maximum seconds to wait for the end of a removal that another process has begun."""
_has_quotas: dict[str, bool] = {}
"""For each engine's URL: True if the engine's storage supports a quota, i.e. a limit on the files of one container."""


@dataclass(frozen=True)
class Container:
    """A container of this package: its id, the id of its sandbox, and the settings that a process needs to adopt it."""

    id: str
    sandbox_id: str
    profile: str
    directories: Directories


def create_container(settings: ContainerSettings, certificates: bytes, lease: float) -> Container:
    """Create a container with all labels, but do not start the container.

    Args:
        settings: settings of the container.
        certificates: PEM text of certificates that programs inside trust; empty if there are none.
        lease: seconds after which the sandbox will end if it hears nothing from its owner. The value becomes a label.

    Raises:
        ImageError: if the image is missing, or its name is invalid.
        NetworkChangedError: if another process has removed or duplicated the network meanwhile.
        SandboxError: if the engine refuses the request.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError, ImageNotFound

    client = connect()
    sandbox_id = secrets.token_hex(6)
    labels = owner_labels(sandbox_id, lease, settings.labels)

    def make(quota: bool) -> dict[str, Any]:
        argv = bootstrap_argv(steps=first_steps(settings, closing_order(settings.chosen_network)))
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
            raise ImageError(f"{settings.image!r} is not a valid name of an image: correct it.") from error
        raise network_changed(error) or unexpected(error, "make a container") from error
    container = Container(made["Id"], sandbox_id, settings.profile, settings.directories)
    if certificates:
        try:
            _trust(container.id, certificates)
        except BaseException:
            remove_container(container.id)
            raise
    return container


def with_quota(client: DockerClient, make: Callable[[bool], dict[str, Any]]) -> dict[str, Any]:
    """Call `make`, which makes a container with a quota (True) or without (False). Return its result.

    The argument is True if the engine's storage supports quotas.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    engine = str(client.api.base_url)
    if engine not in _has_quotas:
        info = client.info()
        filesystem = dict(info.get("DriverStatus") or []).get("Backing Filesystem")
        # Only this storage counts as a storage with quotas. With others, the image's files would use up the quota too.
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


def _trust(container: str, certificates: bytes) -> None:
    """Copy certificates into a container that has not started yet, and settings with which apt uses them."""
    from llm_sandbox_nb.sandbox.docker.api import APIError

    apt = f'Acquire::https::CAInfo "{CA_PATH}";\n'.encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in ((CA_PATH, certificates), (_APT_SETTINGS, apt)):
            member = tarfile.TarInfo(path.strip("/"))
            member.mode, member.size = 0o644, len(data)
            archive.addfile(member, io.BytesIO(data))
    try:
        connect().api.put_archive(container, "/", buffer.getvalue())
    except APIError as error:
        raise unexpected(error, "put certificates into a new container") from error


def start_container(container: str, image: str) -> None:
    """Start a container. `image` is the name of its image, which error messages need.

    Raises:
        ImageError: if the image has no python3.
        NetworkChangedError: if another process has removed or duplicated the sandboxes' network since the container
            was created.
        SandboxError: if the engine refuses the request.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    try:
        connect().api.start(container)
    except APIError as error:
        if "python3" in one_line(error):
            raise ImageError(unusable(image, ["python3"])) from error
        raise network_changed(error) or unexpected(error, "start a container") from error


def inspect_container(container: str) -> dict[str, Any]:
    """Return the engine's description of a container.

    Raises:
        SandboxLostError: if the container is gone, or no engine answers.
    """
    with lost_errors():
        inspected: dict[str, Any] = connect().api.inspect_container(container)
    return inspected


def take_over(container_id: str) -> Container:
    """Check that a container may be adopted, and make this process its owner.

    Raises:
        SandboxError: if the container is not managed by this package, or its owner may still be running.
        SandboxLostError: if the container has ended.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    inspected = inspect_container(container_id)
    labels: dict[str, str] = inspected["Config"].get("Labels") or {}
    owner = owner_of({"Labels": labels, "Names": [inspected.get("Name", "")]})
    if owner is None:
        raise SandboxError(
            f"The container {container_id[:12]} is not a sandbox of {PREFIX}: give the id of a sandbox."
        )
    if not owner.is_dead() and owner != current_owner():
        raise SandboxError(
            f"The sandbox {labels[LABEL_ID]} belongs to a process that may still be running: end that process first."
        )
    if not inspected["State"].get("Running"):
        raise SandboxLostError(f"The sandbox {labels[LABEL_ID]} has ended; open a new one.")
    try:
        connect().api.rename(container_id, adopted_name(labels[LABEL_ID], inspected.get("Name", "")))
    except APIError as error:
        if error.status_code != 400:  # 400: this process has adopted the container before
            raise SandboxLostError(f"The sandbox is lost: {one_line(error)}; open a new one.") from error
    root = labels.get(LABEL_ROOT, Directories().root)
    profile = labels.get(LABEL_PROFILE, "standard")
    return Container(inspected["Id"], labels[LABEL_ID], profile, Directories(root))


def label_container(container: str, label: str, value: str) -> None:
    """Add a label to a running container, as a part of its name, because Docker cannot change labels.

    Raises:
        SandboxLostError: if the container is gone, or no engine answers.
    """
    name = inspect_container(container)["Name"]
    with lost_errors():
        connect().api.rename(container, labelled_name(name, label, value))


def remove_container(container: str) -> None:
    """Remove a container with all files, and wait until the engine has finished."""
    from llm_sandbox_nb.sandbox.docker.api import APIError, NotFound

    client = connect()
    with engine_errors():
        sandbox_id = _sandbox_id_in(client, container) if is_podman(client) else ""
        try:
            client.api.remove_container(container, force=True, v=True)
        except NotFound:
            pass
        except APIError as error:
            # 409: another process is removing the container. 500: some engines fail like this at such a time.
            if error.status_code not in (409, 500):
                raise unexpected(error, "remove a container") from error
            with contextlib.suppress(NotFound):
                client.api.wait(container, timeout=REMOVAL_TIMEOUT, condition="removed")
        if sandbox_id:
            remove_own_network(client, sandbox_id)


def _sandbox_id_in(client: DockerClient, container: str) -> str:
    """Return the id of the sandbox in a container. Empty if the container is gone or has no such label."""
    from llm_sandbox_nb.sandbox.docker.api import APIError

    try:
        return str((client.api.inspect_container(container)["Config"].get("Labels") or {}).get(LABEL_ID, ""))
    except APIError:
        return ""


async def put_file(container: str, name: str, size: int, content: Iterator[bytes]) -> None:
    """Copy a file of `size` bytes into the top folder of a running container. Root owns the file.

    Raises:
        IsolationUnavailableError: if no engine answers.
        SandboxError: if the engine refuses the file, for instance because the disk is full.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    try:
        await in_thread(lambda: connect().api.put_archive(container, "/", _Archive(name, size, content)))
    except APIError as error:
        raise unexpected(error, "put a file into a container") from error


_MAX_BATCH_BYTES = 64 * 1024
"""Maximum bytes of pieces that are joined before they are sent. It takes less time to send larger pieces separately."""


class _Archive:
    """A tar archive of one file. It has `__len__`, because `requests` sends a body without a length in small chunks."""

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
            if held + len(piece) > _MAX_BATCH_BYTES:
                yield b"".join(waiting)
                waiting, held = [], 0
            waiting.append(piece)
            held += len(piece)
        yield b"".join((*waiting, self._tail))
