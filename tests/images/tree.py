"""Prints all that a directory's files are, a line for each: type and mode, owner, time, links, size and digest or target, extended
attributes, path. What is no file's own is left out: a directory's size and links, and the time of the root."""

import hashlib
import os
import stat
import sys


def walk(path):
    yield path
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in sorted(os.listdir(path)):
            yield from walk(path + b"/" + name)


def content(path, info):
    if stat.S_ISLNK(info.st_mode):
        return repr(os.readlink(path))
    if stat.S_ISREG(info.st_mode):
        with open(path, "rb") as file:
            return f"{info.st_size} {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
    if stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
        return f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
    return "-"


def line(root, path, first_names):
    info = os.lstat(path)
    name = path[len(root):] or b"/"
    links = "-"
    if not stat.S_ISDIR(info.st_mode):
        links = f"{info.st_nlink} {first_names.setdefault(info.st_ino, name)!r}"
    time = "-" if name == b"/" else info.st_mtime_ns
    attributes = {key: os.getxattr(path, key, follow_symlinks=False) for key in sorted(os.listxattr(path, follow_symlinks=False))}
    return f"{stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid} {time} {links} {content(path, info)} {attributes} {name!r}"


root, first_names = os.fsencode(sys.argv[1]), {}
for path in walk(root):
    print(line(root, path, first_names))
