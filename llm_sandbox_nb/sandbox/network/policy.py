"""Policy of a sandbox's network: the allow-list that a person writes, and decisions about names and addresses.

This module sends nothing to the network. `is_own_address` opens a socket, but does not send.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from llm_sandbox_nb.errors import LLMSandboxError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NAMED_SETS: dict[str, tuple[str, ...]] = {
    "pypi": ("pypi.org", "files.pythonhosted.org"),
    "npm": ("registry.npmjs.org",),
    "debian": ("deb.debian.org", "security.debian.org"),
    "conda": ("conda.anaconda.org", "repo.anaconda.com", "conda-static.anaconda.org"),
    "huggingface": ("huggingface.co", "*.huggingface.co", "*.hf.co"),
    "github": (
        "github.com",
        "api.github.com",
        "codeload.github.com",
        "objects.githubusercontent.com",
        "raw.githubusercontent.com",
        "release-assets.githubusercontent.com",
    ),
}
"""Words in an allow-list, each with the hosts for which it stands."""
USUAL_PORTS = (80, 443)
"""Ports that an entry without a port allows. Only plain HTTP and TLS can use these ports. If an entry names another
port, this port can be used with every protocol."""
METADATA = tuple(
    ipaddress.ip_address(address)
    for address in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")
)
"""Addresses of the metadata services of clouds. Such a service gives a cloud's machine its access keys."""
_TRANSLATED = tuple(
    ipaddress.ip_network(network) for network in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16")
)
"""Ranges of IPv6 addresses that contain an IPv4 address."""
_INTERNET_6 = ipaddress.ip_network("2000::/3")
"""Range of all assigned public IPv6 addresses."""
_ISATAP = 0x5EFE
_NOT_GLOBAL = tuple(
    ipaddress.ip_network(network) for network in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")
)
"""Non-global addresses that `ipaddress` treats as global in some or all versions of Python."""
_NAME_PATTERN = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\Z"
)
_LOOKS_LIKE_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")


class PolicyRefusalError(LLMSandboxError):
    """Refusal of a connection by the policy. The message is the reason in a few words."""


@dataclass(frozen=True)
class HostRule:
    """Entry of the allow-list. It allows a host or, with `*.` before the host, every name below the host.

    An entry may also name a port. An entry that begins with `!` denies instead of allowing.
    """

    host: str
    below: bool = False
    port: int | None = None
    denies: bool = False

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """Parse `example.org`, `*.example.org`, `example.org:22` or `10.0.0.5:5432`. Each form may begin with `!`.

        Raises:
            ValueError: if the text has another form. The message is one sentence.
        """
        rest = text.strip()
        denies, rest = rest.startswith("!"), rest.removeprefix("!")
        bracket = re.fullmatch(r"\[(.*)\](?::(.*))?", rest)
        if bracket:
            host, port = bracket[1], bracket[2]
        elif rest.count(":") > 1:
            host, port = rest, None
        else:
            host, _, port = rest.partition(":")
            port = port if ":" in rest else None
        below, host = host.startswith("*."), host.removeprefix("*.")
        try:
            number = None if port is None else read_port(port)
            return cls(checked_host(host), below, number, denies)
        except ValueError:
            raise ValueError(
                f"{text!r} cannot be allowed: write a host (example.org) or all names below a host (*.example.org), "
                f"with or without a port (example.org:22), or one of {', '.join(NAMED_SETS)}."
            ) from None

    def matches(self, host: str, port: int) -> bool:
        """Return True if this entry covers `port` and `host`. `checked_host` must have checked the host."""
        if port != self.port and (self.port is not None or (port not in USUAL_PORTS and not self.denies)):
            return False
        return host.endswith(f".{self.host}") if self.below else host == self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{'!' * self.denies}{'*.' * self.below}{host}{port}"


PUBLIC = HostRule("public")
"""Stand-in for an entry if no entry allows a connection, but the network `public` allows the whole internet."""


class Policy:
    """List of allowed and denied hosts. `permit` adds entries while the sandbox is in use."""

    def __init__(self, entries: Iterable[str] = (), *, public: bool = False) -> None:
        """Check the entries with `checked_entries`. With `public`, allow every host with a public address."""
        self.entries = checked_entries(entries)
        self.rules = rules_of(self.entries)
        self.public = public
        self._once: list[HostRule] = []

    def permit(self, entry: str, *, once: bool = False) -> None:
        """Add an entry. With `once`, the entry is valid only for the next connection to its host.

        A host that another entry denies stays denied.

        Raises:
            ValueError: if the entry is invalid.
        """
        (self._once if once else self.rules).extend(rules_of([entry]))

    def check(self, host: str, port: int) -> HostRule:
        """Return the entry that allows a connection. If it is valid only once, remove it from the list.

        Raises:
            PolicyRefusalError: if no entry allows the connection, or if an entry denies it.
        """
        matching = [rule for rule in self.rules if rule.matches(host, port)]
        denied = next((rule for rule in matching if rule.denies), None)
        if denied:
            raise PolicyRefusalError(f"the list denies it ({denied})")
        if matching:
            return next((rule for rule in matching if rule.port is not None), matching[0])
        if self.public:
            return PUBLIC
        for rule in self._once:
            if rule.matches(host, port) and not rule.denies:
                self._once.remove(rule)
                return rule
        named = any(rule.matches(host, rule.port or 443) for rule in self.rules)
        raise PolicyRefusalError(f"port {port} is not in the list" if named else "it is not in the list")

    def check_address(self, address: Address, port: int, allowing: HostRule) -> None:
        """Refuse a private or otherwise forbidden address, unless an entry of the list is this address.

        `allowing` is the entry that allows the connection.

        Raises:
            PolicyRefusalError: if the address is refused.
        """
        kind = what_is_wrong_with(address)
        # `check` has removed `allowing` from the list if it is valid only once.
        rules = [*self.rules, allowing]
        if kind and not any(rule.matches(str(address), port) and not rule.denies for rule in rules):
            raise PolicyRefusalError(kind)


def checked_entries(entries: Iterable[str]) -> tuple[str, ...]:
    """Check the entries of an allow-list, and return them. A text with commas is split into several entries.

    Raises:
        ValueError: if an entry is invalid.
    """
    found = tuple(part.strip() for entry in entries for part in entry.split(",") if part.strip())
    for text in found:
        if text not in NAMED_SETS:
            HostRule.parse(text)
    return found


def rules_of(entries: Iterable[str]) -> list[HostRule]:
    """Parse entries. A word of `NAMED_SETS`, with or without `!`, stands for several rules. Raises ValueError."""
    pairs = [(entry[: entry.startswith("!")], entry.removeprefix("!")) for entry in entries]
    return [HostRule.parse(denial + host) for denial, word in pairs for host in NAMED_SETS.get(word, (word,))]


def read_port(text: str) -> int:
    """Parse a port. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise ValueError("not a port")
    return int(text)


def checked_host(text: str) -> str:
    """Return a host in canonical form: a name in lower case without a final dot, or an address.

    Raises:
        ValueError: if the text is neither a name of letters, digits, `_`, `-` and `.` nor an address in the usual form.
            Unusual forms of addresses that name resolvers accept (`0x7f.1`, `127.1`, `2130706433`) are refused.
    """
    if not text.isascii():
        raise ValueError("not a host")
    host = text.lower()
    if ":" in host or re.fullmatch(r"[0-9]+(\.[0-9]+){3}", host):
        if "%" in host:
            raise ValueError("not a host")
        return str(ipaddress.ip_address(host))
    host = host.removesuffix(".")
    if not _NAME_PATTERN.match(host) or _LOOKS_LIKE_NUMBER.match(host.rpartition(".")[2]):
        raise ValueError("not a host")
    return host


def is_literal(host: str) -> bool:
    """Return True if a host that `checked_host` has returned is an address."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def what_is_wrong_with(address: Address) -> str:
    """Return the reason, in a few words, why an address is forbidden. The reason is empty for an allowed address."""
    if address in METADATA:
        return "metadata address"
    if isinstance(address, ipaddress.IPv6Address):
        isatap = (int(address) >> 32) & 0xFCFFFFFF == _ISATAP
        if address.ipv4_mapped or isatap or any(address in net for net in _TRANSLATED):
            return "IPv6 form of an IPv4 address"
        if address.scope_id:
            return "link-local address"
    if address.is_loopback:
        return "loopback address"
    if address.is_multicast:
        return "multicast address"
    of_internet = address.version == 4 or address in _INTERNET_6
    if not address.is_global or not of_internet or any(address in net for net in _NOT_GLOBAL):
        return "private address"
    return "this machine's own address" if is_own_address(address) else ""


def is_own_address(address: Address) -> bool:
    """Return True if this machine has the address.

    The test is to bind a socket to the address, because a list of the machine's addresses may be incomplete.
    """
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True
