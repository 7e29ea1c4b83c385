"""Asks the helper about the address of a saved instance, in its own words.

    double.py HELPER leave NETWORK ADDRESS FILE         has it kept for her, and writes the claim to FILE
    double.py HELPER move NETWORK FILE [IN_USE]         takes it as an instance that moves here from another node, perhaps with another time than
                                                        the claim's. Prints `granted`, or why not
"""

import ctypes, os, socket, struct, sys

VERSION, MOVES = 3, 2
NEWUSER, NEWNET = 0x10000000, 0x40000000
# Address, until, in use, whether there is a proof, the proof.
CLAIM = "<4sQQ33s"


def ask(message):
    """The helper's answer, and how many descriptors came along."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    ours.send(message)
    theirs.set_inheritable(True)
    if os.fork() == 0:
        os.execv(sys.argv[1], [sys.argv[1], str(theirs.fileno())])
    theirs.close()
    answer, fds, *_ = socket.recv_fds(ours, 8192, 4)
    return answer, len(fds)


def leave(network, address, file):
    number = struct.pack("<I", int.from_bytes(socket.inet_aton(address), "big"))
    answer, _ = ask(bytes([VERSION]) + b"k" + number + network.encode())
    claim = answer[-struct.calcsize(CLAIM):]
    assert socket.inet_ntoa(struct.unpack(CLAIM, claim)[0]) == address, answer
    with open(file, "wb") as out:
        out.write(claim)


def move(network, file, in_use=None):
    with open(file, "rb") as source:
        address, until, said, proof = struct.unpack(CLAIM, source.read())
    claim = struct.pack(CLAIM, address, until, int(in_use or said), proof)
    ready, release = os.pipe(), os.pipe()
    member = os.fork()
    if member == 0:
        if ctypes.CDLL(None).unshare(NEWUSER | NEWNET):
            os._exit(1)
        os.close(release[1])
        os.write(ready[1], b"!")
        os.read(release[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    answer, fds = ask(struct.pack("<BcIB", VERSION, b"c", member, MOVES) + claim + network.encode())
    print("granted" if fds else answer[2:].decode())


{"leave": leave, "move": move}[sys.argv[2]](*sys.argv[3:])
