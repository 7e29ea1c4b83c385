"""Frames that somebody who rules his network namespace may try to send, and who listens for them.

    spoof.py send DEVICE ADDRESS HARDWARE BETWEEN OTHER OTHER-HARDWARE
    spoof.py flood DEVICE ADDRESS HARDWARE      what is for somebody else, and what is for him
    spoof.py listen DEVICE           prints the names of the frames that arrive, until those that may are there

Each frame carries its name. `honest-` ones are those that may pass; the last of them is sent last.
"""

import ctypes, re, socket, struct, subprocess, sys, time

LAST = b"honest-last"


def hardware(text):
    return bytes.fromhex(text.replace(":", ""))


def frame(source, kind, rest, to=b"\xff" * 6):
    return to + source + struct.pack("!H", kind) + rest


def ipv4(source, name, to="255.255.255.255", port=9009):
    body = struct.pack("!HHHH", port, 9, 8 + len(name), 0) + name
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 9, 17, 0) + socket.inet_aton(source) + socket.inet_aton(to)
    sum_ = sum(struct.unpack("!10H", head))
    sum_ = (sum_ & 0xFFFF) + (sum_ >> 16)
    return head[:10] + struct.pack("!H", ~(sum_ + (sum_ >> 16)) & 0xFFFF) + head[12:] + body


def arp(operation, source, address, name, lengths=(6, 4)):
    return struct.pack("!HHBBH", 1, 0x800, *lengths, operation) + source + socket.inet_aton(address) + b"\0" * 6 + socket.inet_aton(address) + name


def send(device, address, mine, between, other, others):
    mine, between, others = map(hardware, (mine, between, others))
    IP, ARP = 0x800, 0x806
    vlan = struct.pack("!HH", 5, IP)
    frames = [
        frame(mine, IP, ipv4(other, b"spoof-address")),
        frame(others, IP, ipv4(address, b"spoof-hardware")),
        frame(others, IP, ipv4(other, b"spoof-both")),
        frame(mine, IP, ipv4("0.0.0.0", b"spoof-none")),
        frame(mine, IP, ipv4(address, b"spoof-low-port", port=700)),
        frame(mine, IP, ipv4(other, b"spoof-through", "10.41.2.0"), to=between),
        frame(mine, ARP, arp(2, mine, other, b"spoof-arp-answer")),
        frame(mine, ARP, arp(1, mine, other, b"spoof-arp-question")),
        frame(mine, ARP, arp(1, mine, "0.0.0.0", b"spoof-arp-probe")),
        frame(mine, ARP, arp(2, others, address, b"spoof-arp-hardware")),
        frame(others, ARP, arp(2, mine, address, b"spoof-arp-sender")),
        frame(mine, ARP, arp(2, mine, address, b"spoof-arp-lengths", (16, 4))),
        frame(mine, 0x8100, vlan + ipv4(address, b"spoof-vlan")),
        frame(mine, 0x88A8, vlan + ipv4(address, b"spoof-vlans")),
        frame(mine, 0x86DD, b"\x60" + b"\0" * 39 + b"spoof-ipv6"),
        frame(mine, 0x8847, b"\0\0\x11\x40" + ipv4(address, b"spoof-mpls")),
        frame(mine, 38, b"\x42\x42\x03" + b"spoof-spanning-tree" + b"\0" * 16, to=hardware("01:80:c2:00:00:00")),
        frame(mine, 0x88CC, b"spoof-neighbour" + b"\0" * 40, to=hardware("01:80:c2:00:00:0e")),
    ]
    on(device, frames)
    # A device of the namespace's own, with another hardware address; and the address itself, on both.
    subprocess.run(["ip", "link", "add", "link", device, "name", "second", "type", "macvlan", "mode", "bridge"], check=True)
    subprocess.run(["ip", "link", "set", "second", "up"], check=True)
    subprocess.run(["ip", "addr", "add", other + "/16", "dev", "second"], check=True)
    subprocess.run(["ip", "addr", "add", other + "/16", "dev", device], check=True)
    for name in "second", device:
        plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode())
        plain.bind((other, 0))
        plain.sendto(b"spoof-kernel-" + name.encode(), ("255.255.255.255", 9))
    subprocess.run(["ip", "link", "del", "second"], check=True)
    subprocess.run(["ip", "addr", "del", other + "/16", "dev", device], check=True)
    on(device, [frame(mine, ARP, arp(1, mine, address, b"honest-arp")), frame(mine, IP, ipv4(address, LAST))])


def on(device, frames):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind((device, 0))
        for one in frames:
            raw.send(one)


def flood(device, address, his):
    mine = b"\x02" * 6
    names = {b"spoof-flooded": b"\x02\2\2\2\2\3", b"honest-own": hardware(his), LAST: b"\xff" * 6}
    on(device, [frame(mine, 0x800, ipv4(address, name), to) for name, to in names.items()])


def without_tcp(raw):
    """Has the kernel keep TCP over IPv4 away: of a stream beside, more may come than is read, and then frames that matter are lost."""
    # Half-word 12 is 0x800, and byte 23 is 6: nothing; otherwise all of it.
    program = [(0x28, 0, 0, 12), (0x15, 0, 3, 0x800), (0x30, 0, 0, 23), (0x15, 0, 1, 6), (6, 0, 0, 0), (6, 0, 0, 65535)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    raw.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", len(program), ctypes.addressof(code)))  # SO_ATTACH_FILTER


def listen(device):
    seen, end = [], time.monotonic() + 50
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        without_tcp(raw)
        raw.bind((device, 3))  # ETH_P_ALL
        # Promiscuous: SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC.
        raw.setsockopt(263, 1, struct.pack("iHH8s", socket.if_nametoindex(device), 1, 0, b""))
        raw.settimeout(1)
        print("listening", flush=True)
        while LAST not in seen and time.monotonic() < end:
            try:
                seen += re.findall(rb"(?:spoof|honest)-[a-z0-9-]*", raw.recv(4096))
            except TimeoutError:
                pass
        # PACKET_STATISTICS: how many came, and how many of them found no room.
        lost = struct.unpack("II", raw.getsockopt(263, 6, 8))[1]
    if lost:
        sys.exit(f"{lost} frames were lost")
    print(" ".join(sorted({name.decode() for name in seen})))


{"send": send, "flood": flood, "listen": listen}[sys.argv[1]](*sys.argv[2:])
