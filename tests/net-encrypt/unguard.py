"""Deletes an nftables table of this network namespace's, and asserts that it was there, as `nft flush ruleset` would.

    unguard.py ip|ip6 TABLE
"""

import os, socket, struct, sys

FAMILIES = {"ip": 2, "ip6": 10}
REQUEST, ACK, TABLES = 1, 4, 10
DELETE, BEGIN, END = TABLES << 8 | 2, 0x10, 0x11


def message(kind, flags, family, number, body=b""):
    return struct.pack("=IHHIIBBH", 20 + len(body), kind, REQUEST | flags, 0, 0, family, 0, socket.htons(number)) + body


name = sys.argv[2].encode() + b"\0"
attribute = struct.pack("=HH", 4 + len(name), 1) + name + bytes(-len(name) % 4)
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as s:
    begin, end = (message(kind, 0, 0, TABLES) for kind in (BEGIN, END))
    s.send(begin + message(DELETE, ACK, FAMILIES[sys.argv[1]], 0, attribute) + end)
    kind, code = struct.unpack_from("=4xH10xi", s.recv(65536))
assert (kind, code) == (2, 0), os.strerror(-code)
