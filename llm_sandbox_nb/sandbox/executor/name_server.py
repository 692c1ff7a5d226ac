"""A name server for the sandbox, in front of the engine's name server, which would resolve names of other sandboxes.

Most questions and answers are forwarded. A question is refused if it cannot be parsed to its end. A reverse lookup (the
question for the name of an address) is refused if the address is not public. In the network `public`, a name without a
dot, such as the name of another sandbox, is not forwarded. There, an answer that has only closed addresses becomes "no
such name".

The firewall lets packets pass to the engine's server only from sockets with the firewall's mark. Process 1 makes these
sockets before it drops the right to set the mark.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time

from .event_loop import IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .event_loop import EventLoop

ADDRESS = "127.0.0.53"
PORT = 53
SETTINGS = "/etc/resolv.conf"
FIRST_DESCRIPTOR = 256
"""Lowest descriptor number for the sockets, because `main` closes all smaller descriptors."""
SO_MARK = 36
MAX_PACKET_BYTES = 4096
LONG_ANSWERS = struct.pack(">BHHIH", 0, 41, MAX_PACKET_BYTES, 0, 0)
"""An EDNS record, which allows answers of up to `MAX_PACKET_BYTES`."""
QUESTION_SECONDS = 15.0
"""Seconds until a question without an answer is forgotten."""
MAX_QUESTIONS = 512
"""Maximum number of questions that wait for an answer."""
MAX_PACKETS_PER_ROUND = 64
"""Maximum number of packets that are read before other events are handled."""
REFUSED, NO_SUCH_NAME = 5, 3
REVERSE_ZONES = ([b"in-addr", b"arpa"], [b"ip6", b"arpa"])

listeners: list[socket.socket] = []
"""Sockets of this process for questions from the sandbox."""
upstream: list[socket.socket] = []
"""Sockets of this process to the servers that answer. Each socket is connected to one server."""
closed: list[Callable[[str], bool]] = []
"""List of a single function, which returns True for a numeric address that the network `public` closes. Reverse lookups
of such an address are refused."""
hides: list[bool] = []
"""`[True]` in the network `public`, where this server hides names without a dot, and names that lead only to closed
addresses. Otherwise empty."""


def configured() -> list[str]:
    """Return the addresses of the name servers in `SETTINGS`, except this server."""
    try:
        with open(SETTINGS) as file:
            words = [line.split() for line in file]
    except OSError:
        return []
    found = [line[1].partition("%")[0] for line in words if len(line) > 1 and line[0] == "nameserver"]
    return [address for address in found if address != ADDRESS and is_address(address)]


def external() -> list[str]:
    """Return the servers that the engine's name server asks, if a comment of the engine in `SETTINGS` lists them."""
    try:
        with open(SETTINGS) as file:
            lines = [line.partition("ExtServers:")[2] for line in file if line.startswith("#")]
    except OSError:
        return []
    return [word for line in lines for word in line.strip(" []\n").split() if is_address(word)]


def is_address(text: str) -> bool:
    """Return True if the text is a numeric address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except OSError:
            continue
        return True
    return False


def asked() -> list[str]:
    """Return the addresses of the servers to which questions are forwarded."""
    return [str(server.getpeername()[0]) for server in upstream]


def take_over(servers: list[str], mark: int, is_closed: Callable[[str], bool], public: bool) -> str | None:
    """Open the sockets, and make this server the only name server in `SETTINGS`.

    Args:
        servers: addresses of the servers that answer.
        mark: the firewall's mark for the sockets to these servers.
        is_closed: function that returns True for a numeric address that the network `public` closes.
        public: True if the network is `public`.

    Returns:
        The former text of `SETTINGS`, or None if the server could not be set up.
    """
    try:
        with open(SETTINGS) as file:
            original = file.read()
        closed[:] = [is_closed]
        hides[:] = [True] if public else []
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.bind((ADDRESS, PORT))
        listeners.append(move_up(listener))
        for server in servers:
            connected = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
            connected.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
            connected.connect((server, PORT))
            upstream.append(move_up(connected))
        others = [line for line in original.splitlines() if line.split()[:1] != ["nameserver"]]
        write_settings("\n".join(["nameserver %s" % ADDRESS, *others, ""]))
    except OSError:
        close()
        return None
    return original


def give_back(original: str) -> None:
    """Undo `take_over`. `original` is its result."""
    close()
    write_settings(original)


def close() -> None:
    for sock in listeners + upstream:
        sock.close()
    listeners.clear()
    upstream.clear()


def move_up(low: socket.socket) -> socket.socket:
    """Return a non-blocking copy of a socket, with a descriptor that `main` leaves open."""
    copy = socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR))
    copy.setblocking(False)
    low.close()
    return copy


def write_settings(text: str) -> None:
    """Overwrite the settings in place, because a file that an engine has mounted cannot be replaced. Raises OSError."""
    with open(SETTINGS, "r+") as file:
        file.write(text)
        file.truncate()


class NameServer:
    """A name server in the executor's event loop. A process of its own could be killed by commands."""

    def __init__(self, loop: EventLoop) -> None:
        self.pending: dict[int, tuple[bytes, bytes, tuple[str, int], float]] = {}
        for sock in listeners:
            loop.watch(sock.fileno(), IN, lambda _, sock=sock: self.take_questions(sock))  # type: ignore[misc]
        for sock in upstream:
            loop.watch(sock.fileno(), IN, lambda _, sock=sock: self.take_answers(sock))  # type: ignore[misc]

    def take_questions(self, listener: socket.socket) -> None:
        """Forward or refuse questions of programs in the sandbox."""
        for _ in range(MAX_PACKETS_PER_ROUND):
            try:
                packet, sender = listener.recvfrom(MAX_PACKET_BYTES)
            except OSError:
                return
            question, refusal = examine(packet)
            if refusal:
                reply(listener, refusal, sender)
            elif question:
                self.pass_on(packet, question, sender)

    def pass_on(self, packet: bytes, question: bytes, sender: tuple[str, int]) -> None:
        """Send a question, with a new number, to all servers. The first good answer will be used."""
        now = time.monotonic()
        for known, (*_, asked_at) in list(self.pending.items()):
            if now - asked_at < QUESTION_SECONDS and len(self.pending) < MAX_QUESTIONS:
                break
            del self.pending[known]
        key = int.from_bytes(os.urandom(2), "big")
        if key in self.pending:
            return
        self.pending[key] = (packet[:2], question, sender, now)
        rest = packet[2:]
        if len(packet) == 12 + len(question):
            # Without EDNS, longer answers would be cut, and the program would retry over TCP, which is closed.
            rest = packet[2:10] + b"\0\x01" + question + LONG_ANSWERS
        for server in upstream:
            try:
                server.send(struct.pack(">H", key) + rest)
            except OSError:
                continue

    def take_answers(self, server: socket.socket) -> None:
        """Forward answers to the programs that asked. Forward a failure only if the last server has sent it."""
        for _ in range(MAX_PACKETS_PER_ROUND):
            try:
                packet = server.recv(65536)
            except OSError:
                return
            if len(packet) < 12:
                continue
            key = int.from_bytes(packet[:2], "big")
            if key not in self.pending:
                continue
            number, question, sender, _ = self.pending[key]
            if packet[12 : 12 + len(question)].lower() != question.lower():
                continue
            if packet[3] & 15 not in (0, NO_SUCH_NAME) and server is not upstream[-1]:
                continue
            del self.pending[key]
            if hides and leads_to_closed(packet, 12 + len(question)):
                reply(listeners[0], refusal(number + packet[2:4], NO_SUCH_NAME, question), sender)
            else:
                reply(listeners[0], number + packet[2:], sender)


def reply(listener: socket.socket, packet: bytes, sender: tuple[str, int]) -> None:
    """Send a packet. Ignore errors, because the receiver may be gone."""
    try:
        listener.sendto(packet, sender)
    except OSError:
        return


def examine(packet: bytes) -> tuple[bytes, bytes]:
    """Decide if a packet from the sandbox is forwarded, refused or ignored.

    Returns:
        The question in a packet that is forwarded, and the answer to a packet that is refused. The other value is b"".
        Both values are b"" if the packet is ignored.
    """
    if len(packet) < 12 or packet[2] & 0x80:
        return b"", b""
    labels, end = read_name(packet)
    if packet[4:6] != b"\0\x01" or packet[2] & 0x78 or not end or len(packet) < end + 4:
        return b"", refusal(packet, REFUSED)
    question = packet[12 : end + 4]
    reverse = [label.lower() for label in labels[-2:]] in REVERSE_ZONES
    if (reverse and not is_public(labels)) or (hides and len(labels) == 1):
        return b"", refusal(packet, NO_SUCH_NAME, question)
    return question, b""


def refusal(packet: bytes, code: int, question: bytes = b"") -> bytes:
    """Return an answer with an error code and without records."""
    flags = struct.pack(">H", 0x8000 | struct.unpack_from(">H", packet, 2)[0] & 0x7900)
    return packet[:2] + flags[:1] + bytes([code]) + (b"\0\x01" if question else b"\0\0") + bytes(6) + question


def read_name(packet: bytes) -> tuple[list[bytes], int]:
    """Return the labels of the queried name, and the offset of its end.

    The offset is 0 if the name is incomplete or compressed.
    """
    labels: list[bytes] = []
    at = 12
    while at < min(len(packet), 12 + 255):
        size = packet[at]
        at += 1
        if size == 0:
            return labels, at
        if size > 63:
            break
        labels.append(packet[at : at + size])
        at += size
    return [], 0


def is_public(labels: list[bytes]) -> bool:
    """Return True if the labels of a reverse lookup (in-addr.arpa, ip6.arpa) are those of an internet address."""
    numbers = [label.decode("latin-1") for label in reversed(labels[:-2])]
    family, text = socket.AF_INET, ".".join(numbers)
    if labels[-2].lower() == b"ip6":
        groups = "".join(numbers)
        whole = len(numbers) == len(groups) == 32
        family = socket.AF_INET6
        text = ":".join(groups[at : at + 4] for at in range(0, 32, 4)) if whole else ""
    try:
        return not closed[0](socket.inet_ntop(family, socket.inet_pton(family, text)))
    except (OSError, ValueError):
        return False


def leads_to_closed(packet: bytes, at: int) -> bool:
    """Return True if an answer cannot be read, or has only closed addresses. `at` is the offset of its records."""
    found = []
    try:
        for _ in range(struct.unpack_from(">H", packet, 6)[0]):
            while 0 < packet[at] < 0xC0:
                at += packet[at] + 1
            at += 1 if packet[at] == 0 else 2
            kind, _, _, size = struct.unpack_from(">HHIH", packet, at)
            at += 10 + size
            if (kind, size) in ((1, 4), (28, 16)):
                family = socket.AF_INET if kind == 1 else socket.AF_INET6
                found.append(closed[0](socket.inet_ntop(family, packet[at - size : at])))
    except (IndexError, ValueError, struct.error):
        return True
    return bool(found) and all(found)
