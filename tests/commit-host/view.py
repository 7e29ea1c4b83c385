"""view.py BY SEEN SUMS TAR OWN...: says in what the image in TAR differs from what root inside an environment sees, but for what --full leaves out. SEEN is of
`find -printf '%y\\0%m\\0%s\\0%p\\0%l\\0'`, SUMS of `sha256sum -z`. BY says what decides what others may
read: `helper`, then they see nothing else, or `modes`; below the OWN paths all is the environment's own, so it counts whatever its mode."""
import hashlib, os, sys, tarfile

TOPS = ["/etc", "/opt", "/root", "/srv", "/usr", "/var"]
# What is as on a new system, and where something is mounted.
OTHERS = {"/etc/machine-id", "/etc/shadow", "/etc/gshadow", "/etc/hosts", "/etc/slurm", "/var/lib/sss/pipes", "/var/tmp", "/opt/mounted", "/opt/bound"}

if sys.argv[1] == "modes":
    # Other file systems of this host, below which the helper sees.
    OTHERS |= {"/etc/resolv.conf", "/var/spool"}


def seen(seen_file, sums_file):
    sums = dict(reversed(line.split("  ", 1)) for line in open(sums_file, errors="surrogateescape").read().split("\0") if line)
    fields = open(seen_file, errors="surrogateescape").read().split("\0")
    files = {}
    for kind, mode, size, path, target in zip(*[iter(fields)] * 5):
        mode, size = (0o777 if kind == "l" else int(mode, 8)), (int(size) if kind == "f" else 0)
        content = {"f": sums.get(path, "unreadable"), "l": target}.get(kind)
        files[path] = {"path": path, "kind": kind, "mode": mode, "size": size, "content": content}
    return files


def is_below(path, top):
    return path.startswith(top + "/")


def shown(files, own):
    def is_own(path):
        return any(path == top or is_below(path, top) for top in own)

    def is_for_others(path):
        one = files[path]
        if one["kind"] == "d":
            return one["mode"] & 0o005 == 0o005
        return one["kind"] == "l" or one["mode"] & 0o004 or one["size"] == 0

    def is_in_closed(path):
        above = os.path.dirname(path)
        return sys.argv[1] == "modes" and above in files and (not is_for_others(above) or is_in_closed(above))

    def is_part(path):
        one = files[path]
        if any(is_below(path, top) for top in OTHERS) or one["kind"] not in "dflp" or path in OTHERS:
            return False
        if one["kind"] == "l" and one["content"].startswith("/run/skiff/"):
            return False
        if path == "/etc/ssh/ssh_config.d/zz-skiff.conf" or (path == "/root/.ssh" and one["kind"] == "l"):
            return False
        if is_own(path):
            return True
        if is_below(path, "/var/log") and one["kind"] != "d":
            return False
        return sys.argv[1] == "helper" or (not is_in_closed(path) and (one["kind"] == "d" or is_for_others(path)))

    def as_kept(path, one):
        # Without the helper the host's owners are nobody, for whom no setuid or setgid bit is kept.
        is_bare = sys.argv[1] == "modes" and not is_own(path) and one["kind"] in "fd"
        return dict(one, mode=one["mode"] & ~0o6000) if is_bare else one

    return {path: as_kept(path, one) for path, one in files.items() if is_part(path)}


def in_image(tar_file):
    found = {}
    with tarfile.open(tar_file) as tar:
        for one in tar:
            path = "/" + one.name.strip("/").removeprefix("./")
            if not any(path == top or is_below(path, top) for top in TOPS) or any(path == other or is_below(path, other) for other in OTHERS):
                continue
            if one.islnk():
                found[path] = dict(found["/" + one.linkname.strip("/").removeprefix("./")], path=path)
                continue
            kind = "d" if one.isdir() else "f" if one.isreg() else "l" if one.issym() else "p" if one.isfifo() else "?"
            content = None
            if kind == "f":
                content = hashlib.sha256(tar.extractfile(one).read()).hexdigest()
            if kind == "l":
                content = one.linkname
            mode = 0o777 if kind == "l" else one.mode & 0o7777
            found[path] = {"path": path, "kind": kind, "mode": mode, "size": one.size if kind == "f" else 0, "content": content}
    return found


want, got = shown(seen(*sys.argv[2:4]), sys.argv[5:]), in_image(sys.argv[4])
if len(want) < 1000:
    sys.exit(f"only {len(want)} files are seen")
said = [f"missing in the image: {want[path]}" for path in sorted(want.keys() - got.keys())]
said += [f"only in the image: {got[path]}" for path in sorted(got.keys() - want.keys())]
said += [f"seen: {want[path]}\nimage: {got[path]}" for path in sorted(want.keys() & got.keys()) if want[path] != got[path]]
if said:
    sys.exit("\n".join(said[:20]) + f"\n{len(said)} in all, of {len(want)}")
print(len(want))
