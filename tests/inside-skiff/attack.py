"""What a program inside tries that wishes its user ill: to direct, by what it says to the supervisor, what runs outside."""

import json
import os
import subprocess
import sys

EVIL = "/home/alice/evil"
SKIFF = "/run/skiff/skiff"

# Only Skiff's own commands that users have, and the host's that are listed, under no name that says something else.
for words in [
    ("sh", "-c", "id"), ("/home/alice/evil/ssh",), ("../evil/ssh",), ("skiff",), ("skiff", "slurm", "prolog"), ("skiff", "slurm"),
    ("skiff", "agent"), ("skiff", "migrate-receive"), ("skiff", "store-writer"), ("skiff", "--help"), ("skiff", ""),
    ("/home/alice/evil/skiff", "run", "--", "true"), ("skiff-helper", "base"), ("",), ("skiff", "job", "on-signal"),
    # Commands of users that have words which only Skiff itself says, or which run where they are called.
    ("skiff", "app", "notebook"), ("skiff", "app", "desktop"), ("skiff", "cluster", "notebook"), ("skiff", "cluster", "desktop"),
    ("skiff", "cluster", "agent"), ("skiff", "login"), ("skiff", "login", "--environment", "other"),
]:
    refused(*words)

# Variables neither name programs, nor other places, nor another helper.
steered = {
    "PATH": EVIL, "HOME": EVIL, "XDG_CONFIG_HOME": EVIL, "XDG_DATA_HOME": EVIL, "XDG_CACHE_HOME": EVIL, "XDG_RUNTIME_DIR": EVIL,
    "SKIFF_HELPER": "none", "SKIFF_STATE": EVIL, "SKIFF_DEPOT": EVIL, "SKIFF_CALLED_FROM": "other", "SKIFF_CALLER_PATH": EVIL,
    "TMPDIR": EVIL, "SHELL": EVIL + "/sh", "SLURM_CONF": EVIL + "/slurm.conf", "SLURM_EPILOG": EVIL + "/sh", "SLURM_PROLOG": EVIL + "/sh",
    "SSH_ASKPASS": EVIL + "/sh", "SSH_ORIGINAL_COMMAND": EVIL + "/sh", "BASH_ENV": EVIL + "/sh", "ENV": EVIL + "/sh",
    "LD_PRELOAD": EVIL + "/no.so", "EDITOR": EVIL + "/sh", "SSL_CERT_FILE": EVIL, "CONTAINERS_REGISTRIES_CONF": EVIL,
}
pairs = [f"{name}={value}".encode() for name, value in steered.items()]
for words in ["config --json", "env list --json", "images --json", "instance list --json"]:
    argv = ["skiff", *words.split()]
    usual = ask([word.encode() for word in argv])
    assert ask([word.encode() for word in argv], pairs) == usual, words
for words in ["migrate nosuch n1", "drain n1 --to n2", "cluster run true", "doctor", "pull registry.invalid/x", "checkpoint list"]:
    ask([b"skiff", *words.encode().split()], pairs + [b"SLURM_JOB_ID=1", b"SLURM_JOB_NODELIST=n1"])
# They come to what is started, which its caller could start by itself; but not those of Skiff's own.
_, text = ask([b"skiff", b"run", b"--", b"/usr/bin/env"], [b"OWN=mine", b"LD_LIBRARY_PATH=/x", b"SKIFF_STATE=/x", b"NOSIGN", b"=odd"])
names = [line.split("=")[0] for line in text.splitlines()]
assert "OWN" in names and "LD_LIBRARY_PATH" in names and not [n for n in names if n.startswith("SKIFF_")], text

# On a network of the site's, for which the helper starts Skiff again.
said, text = ask([b"skiff", b"run", b"--net", b"lab", b"--", b"/usr/bin/env"], pairs + [b"OWN=mine"])
assert said[-5:] == b"x" + bytes(4) and "OWN=mine" in text and "SKIFF_" not in text, (said, text)

# Directories: none that the user could not be in, none named from where the supervisor is.
os.symlink("/root", "/home/alice/to-root")
for cwd in [b"/home/alice/to-root", b"/root", b"../../..", b".", b"", b"/proc/1/root", b"/home/alice/nosuch", b"\xff"]:
    said, text = ask([b"skiff", b"run", b"--", b"pwd"], cwd=cwd)
    assert said[-5:] != b"x" + bytes(4) or text.strip() in ("/home/alice", "/"), (cwd, said, text)

# Descriptors: too few, too many, and such as cannot be used. The supervisor answers those who come after.
for odd in [lambda into: [], lambda into: [0], lambda into: [0, into], lambda into: [0, into, into, into],
            lambda into: [os.open("/", os.O_PATH), into, into], lambda into: [os.open("/dev/ptmx", os.O_RDWR), into, into]]:
    ask([b"skiff", b"images"], fds=odd)
# Signals: no number is taken for a group of processes or for one of another's.
for signal in [0, 1, 9, 15, 19, 18, 64, 255]:
    ask([b"skiff", b"env", b"list"], signals=[signal, 18, 15])
assert subprocess.run([SKIFF, "env", "list"], stdout=subprocess.DEVNULL).returncode == 0

# Modes: files that Skiff makes outside are for their user, whatever the umask of who has asked for them.
ask([b"skiff", b"env", b"create", b"wide"], umask=0)
path = json.loads(subprocess.run([SKIFF, "env", "list", "--json"], stdout=subprocess.PIPE).stdout)
path = [env["path"] for env in path if env["name"] == "wide"][0]
for directory, _, files in os.walk(path):
    for name in [directory, *(os.path.join(directory, file) for file in files)]:
        mode = os.lstat(name).st_mode
        assert mode & 0o1000 or not mode & 0o022, (name, oct(mode))
subprocess.run([SKIFF, "env", "rm", "wide"], check=True)
os.unlink("/home/alice/to-root")
sys.exit(0)
