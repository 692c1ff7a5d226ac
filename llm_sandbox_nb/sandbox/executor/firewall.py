"""Packet filter that closes parts of the network around a container.

Process 1 of the container installs the filter before it begins to serve as executor, and tests the filter later.

The filter always closes these addresses:

- the container's own network, with the host as its gateway, and the neighbours, which are other sandboxes;
- the host's addresses on other bridges, and metadata services of clouds;
- name servers that know the names of neighbours.

In the network `public`, the filter also closes the host's other addresses, and all addresses outside the internet.
Routes would not suffice, because a socket that is bound to an interface bypasses routes. The filter is in the
container's network namespace. Process 1 sends the filter to the kernel as nftables messages, so that a program such as
`nft` is not needed in the container.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from . import name_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

METADATA = ("169.254.0.0/16", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")
"""Addresses of metadata services of AWS, Google, Azure, Oracle, Alibaba and compatible clouds."""
LOCAL_ONLY = ("224.0.0.0/3", "ff00::/8", "fe80::/10")
"""Multicast, broadcast and link-local addresses, which lead no farther than the local network."""
NOT_PUBLIC = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.88.99.0/24",
    "192.168.0.0/16", "198.18.0.0/15", "2001::/32", "2001:db8::/32", "2002::/16",
)  # fmt: skip
"""Private, carrier and test addresses, and IPv6 transition addresses (Teredo, 6to4), which contain an IPv4 address.
This IPv4 address may be private."""
INTERNET_IPV6 = "2000::/3"
"""IPv6 addresses of the internet. `public` closes all others, which are local, unassigned or embed an IPv4 address
(mapped, NAT64), and also the parts of this net that `NOT_PUBLIC` names."""
PRIVATE_PROBES = ("10.0.0.1", "100.64.0.1", "172.16.0.1", "192.168.0.1", "198.18.0.1",
         "fc00::1", "64:ff9b::a00:1", "2002:a00:1::1")  # fmt: skip
NEIGHBOUR_DISCOVERY = (133, 135, 136, 143)
"""Types of ICMPv6 messages with which the kernel finds routers and other machines. Programs in the container cannot
send such messages."""
DNS = 53
MARK = 0x4C534E42
"""Mark on the questions of the sandbox's own name server. The filter lets questions with this mark pass to the servers
that the name server asks."""
TABLE, CHAIN = b"llm_sandbox\0", b"output\0"
INET, NETLINK_NETFILTER, NFTABLES, BATCH_BEGIN, BATCH_END = 1, 12, 10, 16, 17
NEW_TABLE, NEW_CHAIN, NEW_RULE = 0, 3, 6
META_MARK, META_OIFNAME, META_NFPROTO, META_L4PROTO = 3, 7, 15, 16
NESTED, EQUAL, DIFFERENT = 0x8000, 0, 1
TCP, UDP, ICMPV6 = b"\x06", b"\x11", b"\x3a"
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
PROBE_PORT = 9  # discard
REFUSALS = (
    errno.EPERM,
    errno.EACCES,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
)
"""Errors of an attempt to send a packet that the filter refuses. The last two occur if there is no IPv6."""

in_force: dict[str, Any] = {}
"""Argument with which `close_network` was called in this process. Empty if `close_network` was not called."""


def close_network(order: dict[str, Any]) -> None:
    """Close the addresses that the module's docstring lists. The caller must be root and have CAP_NET_ADMIN.

    If the kernel accepts no filter, the network stays open, and `reachable` shows this later. If the sandbox's own name
    server cannot be set up, the engine's name server on loopback stays open, except in the network `public`.

    Args:
        order: a dictionary with five fields. `public` is True to leave only the internet open. `hosts` is a list of
            addresses of the host, which are closed too. `complete` is True if `hosts` has all addresses of the host.
            `resolvers` is a list of the name servers to ask; it is empty if they are unknown. `open` is a list of pairs
            of an address and a TCP port that stay open.
    """
    nets = [*own_networks()]
    in_force.update(order)
    public = order["public"]
    configured = name_server.configured()
    knowing = [server for server in configured if knows_neighbours(server, nets)]
    asked = (public and (order["resolvers"] or name_server.external())) or configured
    original = None
    if public or knowing:
        original = name_server.take_over(asked, MARK, lambda address: is_closed(address, nets), public)
    names = knowing if original is not None or public else []
    forwards = any(server.startswith("127.") for server in configured) and not public
    for refuse in (reject, drop):
        try:
            install([*rules(nets, names, order, forwards, refuse)])
            return
        except OSError:
            continue
    if original is not None:
        name_server.give_back(original)


def rules(
    nets: list[str], names: list[str], order: dict[str, Any], forwards: bool, refuse: bytes
) -> Iterator[list[bytes]]:
    """Yield the rules of the filter. For each packet, the first rule that matches the packet decides.

    A rule is a list of expressions. A packet that no rule matches is let through.

    Args:
        nets: networks of the container, as ADDRESS/BITS.
        names: addresses of name servers that are closed.
        order: argument of `close_network`.
        forwards: True if the engine's name server runs inside this namespace. Its questions to all name servers outside
            of `nets` are let through, even those to name servers of the host and of clouds.
        refuse: last expression of the rules for closed addresses: `reject` or `drop`.
    """
    for server in name_server.asked():
        # The engine has already replaced the port of questions to its own server, which is on loopback.
        port = [] if server.startswith("127.") else to_port(UDP, DNS)
        yield [*meta(META_MARK, struct.pack("=I", MARK)), *destination(server), *port, accept]
    for name in names:
        yield [*destination(name), refuse]
    yield [*meta(META_OIFNAME, b"lo\0".ljust(16, b"\0")), accept]
    for address, port in order["open"]:
        yield [*destination(address), *to_port(TCP, port), accept]
    for kind in NEIGHBOUR_DISCOVERY:
        discovers = [*meta(META_L4PROTO, ICMPV6), payload(2, 0, 1), compare(bytes([kind]))]
        yield [*meta(META_NFPROTO, b"\x0a"), *discovers, accept]
    elsewhere = [*METADATA, *(host for host in order["hosts"] if not any(holds(net, host) for net in nets))]
    for net in elsewhere if forwards else ():
        for protocol in (UDP, TCP):
            yield [*destination(net), *to_port(protocol, DNS), accept]
    closed = [*nets, *elsewhere, *LOCAL_ONLY]
    if order["public"]:
        closed += NOT_PUBLIC
        yield [*destination(INTERNET_IPV6, DIFFERENT), refuse]
    for net in closed:
        yield [*destination(net), refuse]


def knows_neighbours(server: str, nets: Iterable[str]) -> bool:
    """Return True if the engine runs this name server, because the server then may know the names of neighbours.

    Name servers of the engine are on loopback or in `nets`, the container's own networks.
    """
    return server.startswith("127.") or any(holds(net, server) for net in nets)


def is_closed(address: str, nets: Iterable[str]) -> bool:
    """Return True if the network `public` closes a numeric address. `nets` are the container's own networks."""
    closed = [*nets, *in_force["hosts"], *METADATA, *LOCAL_ONLY, *NOT_PUBLIC]
    return (":" in address and not holds(INTERNET_IPV6, address)) or any(
        holds(net, address) for net in closed
    )


# ------------------------------------------------------------------------------------------------- addresses


def own_networks() -> Iterator[str]:
    """Yield the networks to which this namespace is connected, as ADDRESS/BITS."""
    for fields in table("/proc/net/route"):
        if fields[1:3] != ["00000000", "00000000"] and fields[2] == "00000000" and fields[0] != "lo":
            address = struct.pack("<I", int(fields[1], 16))
            yield "%s/%d" % (socket.inet_ntop(socket.AF_INET, address), bin(int(fields[7], 16)).count("1"))
    for fields in table("/proc/net/if_inet6", skip=0):
        if fields[3] == "00":  # of global scope
            yield "%s/%d" % (socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])), int(fields[2], 16))


def gateways() -> Iterator[str]:
    """Yield the IPv4 addresses of the gateways."""
    for fields in table("/proc/net/route"):
        if fields[1] == "00000000" and fields[2] != "00000000":
            yield socket.inet_ntop(socket.AF_INET, struct.pack("<I", int(fields[2], 16)))


def table(path: str, skip: int = 1) -> list[list[str]]:
    """Return the lines of a table of /proc without the first `skip` lines, split into fields.

    The list is empty if the table does not exist.
    """
    try:
        with open(path) as file:
            return [line.split() for line in file][skip:]
    except OSError:
        return []


def parsed(net: str) -> tuple[int, bytes, bytes]:
    """Return the IP version, the first address, and the mask of `net`, which is an ADDRESS or ADDRESS/BITS."""
    address, _, bits = net.partition("/")
    version = 6 if ":" in address else 4
    packed = socket.inet_pton(FAMILIES[version], address)
    size = len(packed)
    mask = ((1 << size * 8) - (1 << size * 8 - int(bits or size * 8))).to_bytes(size, "big")
    return version, masked(packed, mask), mask


def masked(packed: bytes, mask: bytes) -> bytes:
    """Apply a mask to an address."""
    return (int.from_bytes(packed, "big") & int.from_bytes(mask, "big")).to_bytes(len(mask), "big")


def holds(net: str, address: str) -> bool:
    """Return True if an address lies in a network."""
    version, start, mask = parsed(net)
    other, packed, _ = parsed(address)
    return version == other and masked(packed, mask) == start


# ------------------------------------------------------------------------------------- messages of nftables


def attribute(kind: int, content: bytes) -> bytes:
    """Return one netlink attribute, padded to a multiple of 4 bytes."""
    return struct.pack("=HH", len(content) + 4, kind) + content + bytes(-len(content) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that contains other attributes."""
    return attribute(kind | NESTED, b"".join(attributes))


def number(kind: int, value: int) -> bytes:
    """Return an attribute with a 32-bit number."""
    return attribute(kind, struct.pack(">I", value))


def expression(name: bytes, *attributes: bytes) -> bytes:
    """Return an expression, which is one step of a rule."""
    return nested(1, attribute(1, name + b"\0"), nested(2, *attributes))


def verdict(code: int) -> bytes:
    """Return the expression that accepts a packet (`code` 1) or drops a packet (`code` 0)."""
    return expression(b"immediate", number(1, 0), nested(2, nested(2, number(1, code))))


def compare(value: bytes, how: int = EQUAL) -> bytes:
    """Return an expression that compares `value` with the register, into which the previous expression has loaded data.

    If the result is not `how` (`EQUAL` or `DIFFERENT`), the rule does not match.
    """
    return expression(b"cmp", number(1, 1), number(2, how), nested(3, attribute(1, value)))


def meta(key: int, value: bytes) -> list[bytes]:
    """Return expressions that match packets whose metadata `key` is `value`."""
    return [expression(b"meta", number(1, 1), number(2, key)), compare(value)]


def payload(base: int, offset: int, size: int) -> bytes:
    """Return an expression that loads `size` bytes of a packet header into the register.

    `base` is 1 for the IP header, and 2 for the header after it (TCP, UDP, ICMP).
    """
    return expression(b"payload", number(1, 1), number(2, base), number(3, offset), number(4, size))


def destination(net: str, how: int = EQUAL) -> list[bytes]:
    """Return expressions that match packets to a network or address.

    With `DIFFERENT`, they match packets to all other addresses of the same IP version.
    """
    version, address, mask = parsed(net)
    offset = 16 if version == 4 else 24
    bits = nested(4, attribute(1, mask)), nested(5, attribute(1, bytes(len(mask))))
    selected = expression(b"bitwise", number(1, 1), number(2, 1), number(3, len(mask)), *bits)
    is_version = meta(META_NFPROTO, bytes([2 if version == 4 else 10]))
    return [*is_version, payload(1, offset, len(mask)), selected, compare(address, how)]


def to_port(protocol: bytes, port: int) -> list[bytes]:
    """Return expressions that match packets of this protocol to this port."""
    return [*meta(META_L4PROTO, protocol), payload(2, 2, 2), compare(struct.pack(">H", port))]


accept, drop = verdict(1), verdict(0)
reject = expression(b"reject", number(1, 2), attribute(2, b"\x03"))
"""Expression that refuses a packet with the answer "administratively prohibited", so that programs fail at once."""


def install(all_rules: Iterable[list[bytes]]) -> None:
    """Install a table with all these rules for outgoing packets. After an OSError, no rule is installed."""
    hook = nested(4, number(1, 3), number(2, 0))
    chain = (attribute(1, TABLE), attribute(3, CHAIN), hook, number(5, 1), attribute(7, b"filter\0"))
    messages = [(NEW_TABLE, attribute(1, TABLE)), (NEW_CHAIN, b"".join(chain))]
    for rule in all_rules:
        messages.append((NEW_RULE, attribute(1, TABLE) + attribute(2, CHAIN) + nested(4, *rule)))
    batch = [message(BATCH_BEGIN, 0, b"", NFTABLES)]
    for kind, content in messages:
        batch.append(message(NFTABLES << 8 | kind, len(batch), content))
    batch.append(message(BATCH_END, len(batch), b"", NFTABLES))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER) as kernel:
        kernel.bind((0, 0))
        kernel.settimeout(5)
        kernel.send(b"".join(batch))
        left = len(messages)
        while left:
            answer = kernel.recv(65536)
            while answer:
                size, kind = struct.unpack_from("=IH", answer)
                code = -struct.unpack_from("=i", answer, 16)[0] if kind == 2 else 0
                if code:
                    raise OSError(code, os.strerror(code))
                left -= 1
                answer = answer[size + 3 & ~3 :]


def message(kind: int, sequence: int, content: bytes, subsystem: int = 0) -> bytes:
    """Return a netlink message. The kernel confirms each message, except those that begin or end a batch.

    `subsystem` is set only for the messages that begin or end a batch.
    """
    flags = 0x1 if subsystem else 0x1 | 0x4 | 0x400 | 0x800
    head = struct.pack("=IHHII", 20 + len(content), kind, flags, sequence, 0)
    return head + struct.pack(">BBH", 0 if subsystem else INET, 0, subsystem) + content


# ------------------------------------------------------------------------------------------- test of the filter


def reachable() -> dict[str, bool]:
    """Send packets to destinations that should be closed. Return a dictionary: by name, True if one is open.

    The result is empty if there is no network.
    """
    hosts = list(gateways())
    if not hosts:
        return {}
    nets = list(own_networks())
    servers = {*name_server.asked(), *name_server.configured()}
    found = {
        "the gateway": any(goes_out(host, PROBE_PORT) for host in hosts),
        "metadata services": goes_out("169.254.169.254", PROBE_PORT),
        "names of neighbours": any(
            goes_out(server, DNS) for server in servers if knows_neighbours(server, nets)
        ),
    }
    if in_force.get("complete"):
        found["the host's other addresses"] = any(goes_out(host, PROBE_PORT) for host in in_force["hosts"])
    if in_force.get("public"):
        found["private addresses"] = any(goes_out(probe, PROBE_PORT) for probe in PRIVATE_PROBES)
    return found


def goes_out(address: str, port: int) -> bool:
    """Return True if a packet to this address leaves the container."""
    family = FAMILIES[parsed(address)[0]]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.sendto(b"\0", (address, port))
    except OSError as error:
        return error.errno not in REFUSALS
    return True
