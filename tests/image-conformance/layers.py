"""Makes the layers of an image that has what layers do to each other: DIR/0.tar, the lowest, to DIR/2.tar; and DIR/twice.tar, which
names one path several times.

A directory stands behind what is in it: entry by entry, its time would else be that of the unpacking.
"""

import io
import sys
import tarfile

CAPABILITY = "\x01\0\0\x02\0\x04" + "\0" * 14


def entry(name, kind=tarfile.REGTYPE, data=b"", mode=None, owner=(0, 0), mtime=1_700_000_000, target="", device=(0, 0), pax=None):
    info = tarfile.TarInfo(name)
    info.type, info.mtime, info.linkname = kind, mtime, target
    info.mode = mode or (0o755 if kind == tarfile.DIRTYPE else 0o644)
    info.uid, info.gid = owner
    info.devmajor, info.devminor = device
    info.size = len(data)
    info.pax_headers = pax or {}
    return info, data


def file(name, data, **more):
    return entry(name, data=data.encode(), **more)


def directory(name, **more):
    return entry(name, tarfile.DIRTYPE, **more)


def symlink(name, target):
    return entry(name, tarfile.SYMTYPE, target=target)


def link(name, target):
    return entry(name, tarfile.LNKTYPE, target=target)


lowest = [
    file("./keep/a", "1", owner=(70000, 5)),
    file("keep/b", "22", owner=(4_000_000_000, 3_000_000_000)),
    directory("./keep/"),
    file("gone/x", "3"),
    directory("gone"),
    file("opaque/old", "4"),
    file("opaque/sub/old", "5"),
    directory("opaque/sub"),
    directory("opaque"),
    directory("run"),
    symlink("var", "run"),
    symlink("absolute", "/run"),
    symlink("up", "../../../run/deep"),
    directory("run/deep"),
    file("to-dir", "6"),
    file("to-file/x", "7"),
    directory("to-file"),
    file("to-and-fro/first", "7"),
    directory("to-and-fro"),
    file("linked", "88"),
    link("link1", "linked"),
    symlink("symlink", "linked"),
    link("symlink2", "symlink"),
    symlink("dangling", "/no/where"),
    entry("null", tarfile.CHRTYPE, device=(1, 3)),
    entry("disk", tarfile.BLKTYPE, device=(259, 7)),
    entry("fifo", tarfile.FIFOTYPE),
    file("setuid", "x", mode=0o6755),
    file("attrs/x", "9"),
    directory("attrs", mode=0o700),
    file("f" * 255, "the longest name"),
    file("/".join(["long" * 20] * 4), "a name beyond the header"),
    *[directory("/".join(["long" * 20] * depth)) for depth in (1, 2, 3)],
    directory("./", mode=0o755),
]
middle = [
    file("opaque/.wh..wh..opq", ""),
    file("opaque/new", "n"),
    file(".wh.gone", ""),
    file(".wh.to-and-fro", ""),
    file("to-and-fro", "a file in between"),
    file("keep/.wh.a", ""),
    file("var/through", "t"),
    file("absolute/through2", "u"),
    file("up/through3", "v"),
    file(".wh.to-dir", ""),
    file("to-dir/y", "z"),
    file("to-file", "now a file"),
    link("link2", "linked"),
    file(".wh.linked", ""),
    # AUFS: what it wrote down for itself is nobody's.
    file(".wh..wh.aufs", ""),
    directory("attrs", mode=0o1755, owner=(3, 4), pax={"SCHILY.xattr.user.k": "v"}),
    file("capable", "c", pax={"SCHILY.xattr.security.capability": CAPABILITY}),
    file("bare", "b", pax={"SCHILY.xattr.user.long": "v" * 3000, "SCHILY.xattr.user.empty": ""}),
    file("late", "l", mtime=1234567890.123456),
    directory("opaque"),
    directory("keep"),
    directory("run/deep"),
    directory("run"),
    directory("to-dir"),
    directory("./"),
]
highest = [
    file("linked", "a new one"),
    file("link1", "replaced"),
    file("run/.wh.through", ""),
    file(".wh.to-and-fro", ""),
    file("to-and-fro/second", "and a directory again"),
    link("opaque/link3", "link2"),
    directory("to-and-fro"),
    directory("opaque"),
    directory("keep", mtime=77),
    directory("run"),
    directory("attrs", mode=0o1755, owner=(3, 4), mtime=99),
    directory("./"),
]
twice = [
    file("keep/b", "once"),
    directory("keep"),
    file("keep/b", "twice"),
    file("becomes", "a file"),
    symlink("becomes", "keep"),
    link("keep/b2", "keep/b"),
    file("keep/b", "thrice"),
    directory("keep"),
    directory("./"),
]


def write(path, entries):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))


for name, entries in [("0", lowest), ("1", middle), ("2", highest), ("twice", twice)]:
    write(f"{sys.argv[1]}/{name}.tar", entries)
