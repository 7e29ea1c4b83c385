"""Frames that seem to come from a member of a VXLAN, in datagrams that anybody can send, and who listens for them inside.

    forge.py send HOST ID TO NAME ADDRESS HARDWARE PORT [FROM] [CARRIES]     PORT, FROM: the datagram's source, 0 for any
    forge.py listen [SECONDS]                                          prints the names that came, until the last has
"""

import socket, struct, sys


def checksum(head):
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def frame(to, name, address, hardware, carries):
    body = struct.pack("!HHHH", 9, 7000, 8 + len(name), 0) + name
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 9, 17, 0) + socket.inet_aton(address) + socket.inet_aton(to)
    packet = head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body
    tag = struct.pack("!HH", 5, 0x800) if carries == 0x8100 else b""
    mac = bytes.fromhex(hardware.replace(":", ""))
    return b"\x0a\x53" + socket.inet_aton(to) + mac + struct.pack("!H", carries) + tag + packet


def send(host, number, to, name, address, hardware, port, source="0.0.0.0", carries="800"):
    vxlan = struct.pack("!II", 0x08000000, int(number) << 8)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind((source, int(port)))
        s.sendto(vxlan + frame(to, name.encode(), address, hardware, int(carries, 16)), (host, 4789))


def listen(seconds=30):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("", 7000))
        s.settimeout(float(seconds))
        print("listening", flush=True)
        heard = []
        while b"honest-last" not in heard:
            heard.append(s.recv(100))
        print(" ".join(name.decode() for name in heard))


{"send": send, "listen": listen}[sys.argv[1]](*sys.argv[2:])
