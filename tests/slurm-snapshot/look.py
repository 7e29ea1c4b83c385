"""Prints all that can be seen of what `kinds` has made."""
import os, stat, sys
me = os.getuid()
def look(path):
    s = os.lstat(path)
    # In a job, root of the environment is the user; other owners stand for themselves.
    owner = "root" if s.st_uid in (0, me) else "other"
    size = s.st_size if stat.S_ISREG(s.st_mode) or stat.S_ISLNK(s.st_mode) else "-"
    # Whole pages of holes are kept, to the block.
    holes = "sparse" if stat.S_ISREG(s.st_mode) and s.st_blocks * 512 < s.st_size // 2 else "-"
    links = s.st_nlink if stat.S_ISREG(s.st_mode) else "-"
    time = s.st_mtime_ns if not path.startswith(b"/etc/m") else "-"
    print(path, oct(s.st_mode), owner, size, holes, links, time, end=" ")
    if stat.S_ISLNK(s.st_mode):
        print(os.readlink(path))
    elif stat.S_ISREG(s.st_mode) and s.st_mode & 0o400 and owner == "root":
        print(hash(open(path, "rb").read()), sorted(os.listxattr(path)), *(os.getxattr(path, x) for x in os.listxattr(path) if x.startswith("user")))
    else:
        print()
for top in (b"/opt/t", b"/usr/share/doc", b"/usr/games", b"/etc/motd"):
    look(top)
    for parent, dirs, files in os.walk(top):
        dirs.sort()
        for name in sorted(dirs + files):
            look(os.path.join(parent, name))
for path in (b"/etc/issue", b"/usr/bin/tac", b"/usr/bin/head", b"/usr/bin/kopf", b"/usr/src"):
    look(path) if os.path.lexists(path) else print(path, "missing")
