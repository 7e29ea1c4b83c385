"""What the kernel holds a file to by fs-verity, and a disk that changes.

    verity.py measure FILE          prints the digest, or nothing
    verity.py enable FILE
    verity.py flip FILE TEXT        changes a letter of the first TEXT in the file, below its file system
"""

import array, errno, fcntl, os, struct, sys

FIBMAP, GET_BLOCK_SIZE, ENABLE, MEASURE = 1, 2, 0x40806685, 0xC0046686


def measure(file):
    digest = bytearray(struct.pack("=HH", 0, 32) + bytes(32))
    try:
        fcntl.ioctl(file, MEASURE, digest)
        print(digest[4:].hex())
    except OSError as e:
        if e.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOTTY):
            raise


def flip(file, text):
    content = file.read()
    place = content.index(text.encode())
    size, block = array.array("i", [0]), array.array("i", [0])
    fcntl.ioctl(file, GET_BLOCK_SIZE, size)
    block[0] = place // size[0]
    fcntl.ioctl(file, FIBMAP, block)
    assert block[0] > 0
    device = os.stat(file.fileno()).st_dev
    with open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/uevent") as f:
        name = dict(line.strip().split("=") for line in f)["DEVNAME"]
    offset = block[0] * size[0] + place % size[0]
    with open(f"/dev/{name}", "r+b", buffering=0) as disk:
        disk.seek(offset)
        assert disk.read(len(text)) == text.encode()
        disk.seek(offset)
        disk.write(bytes([text.encode()[0] ^ 1]))
        os.fsync(disk.fileno())


with open(sys.argv[2], "rb") as file:
    match sys.argv[1]:
        case "measure":
            measure(file)
        case "enable":
            fcntl.ioctl(file, ENABLE, struct.pack("=IIIIQIIQ88x", 1, 1, 4096, 0, 0, 0, 0, 0))
        case "flip":
            flip(file, sys.argv[3])
