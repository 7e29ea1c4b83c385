"""A person at a terminal in an instance whose terminals are its own."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time

import terminal
from terminal import as_user

EXEC = "skiff instance exec"


def skiff(*words):
    return subprocess.run(as_user("alice", "skiff", *words), check=True, capture_output=True, text=True).stdout


def says(t, command, pattern):
    t.line(command)
    match = t.expect(pattern)
    t.prompt()
    return match


def modes(t):
    return says(t, "stty -g", r"([0-9a-f]+:[0-9a-f:]+)\r").group(1)


def eventually(what, condition, seconds=20):
    end = time.monotonic() + seconds * terminal.SLOWNESS
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"FAILED: {what}")
        time.sleep(0.05)


def processes(pattern):
    found = subprocess.run(["pgrep", "-u", "alice", "-f", pattern], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def enter(t, *options):
    """A shell in the instance, from an interactive one outside."""
    t.line(f"{EXEC} {' '.join(options)} -e 'PS1=INSIDE> ' sim -- bash --norc --noprofile --noediting -i")
    t.expect("INSIDE> ")
    t.line("stty -echo; echo s\\et")
    t.expect("set\r$")
    t.expect("INSIDE> ")


def inside(t, command, pattern):
    t.line(command)
    match = t.expect(pattern)
    t.expect("INSIDE> ")
    return match


def leave(t, code=0):
    t.line(f"exit {code}")
    t.prompt()


def names(t):
    """It has a name inside, by which programs open it."""
    enter(t)
    name = inside(t, "tty", r"^(/dev/pts/\d+)\r$").group(1)
    inside(t, "readlink /proc/self/fd/0", rf"^{name}\r$")
    inside(t, "test -O $(tty) && echo ours", "^ours\r$")
    inside(t, "echo by name >$(tty)", "^by name\r$")
    inside(t, "stty size", r"^33 111\r$")
    # The user's own terminal is nowhere.
    inside(t, "ls -l /proc/*/fd 2>&- | grep -c 'unreachable\\|terminals'", r"^0\r$")
    leave(t)


def programs(t):
    """Those that refuse a terminal without a name."""
    enter(t)
    t.line("tmux -f /dev/null new-session 'stty size; sleep 100'")
    # It shows the time at the right of its last line.
    t.expect(r"(?s)32 111.*\d\d:\d\d")
    t.send("\x02d")
    t.expect("detached")
    t.expect("INSIDE> ")
    t.line("tmux attach")
    t.expect(r"(?s)32 111")
    t.send("\x03")
    t.expect(r"\[exited\]")
    t.expect("INSIDE> ")
    inside(t, "script -qc tty /dev/null", r"^/dev/pts/\d+\r$")
    t.line("su nobody -s /bin/sh -c 'tty; echo as $(id -un)'")
    t.expect(r"^/dev/pts/\d+\r$")
    t.expect("^as nobody\r$")
    t.expect("INSIDE> ")
    # Asks at /dev/tty, and shows nothing of what is typed.
    t.line("python3 -c 'import getpass; print(\"got\", getpass.getpass())' </dev/null")
    t.expect("Password: ")
    t.line("secret")
    t.expect(r"^got secret\r$")
    assert "secret" not in t.before, t.before
    t.expect("INSIDE> ")
    leave(t)


def keys(t):
    """The key for a core, and the settings that come back after programs that have changed theirs."""
    before = modes(t)
    t.line(f"{EXEC} sim -- sh -c 'echo begun; sleep 100'; echo code=$?")
    t.expect("^begun")
    time.sleep(0.2)
    t.send("\x1c")
    t.expect(r"code=131\r$")
    t.prompt()
    t.line(f"{EXEC} sim -- sh -c 'stty raw -echo; exit 4'; echo code=$?")
    t.expect(r"code=4\r$")
    t.prompt()
    # The end of input.
    t.line(f"{EXEC} sim -- cat; echo code=$?")
    t.line("typed")
    t.expect(r"^typed\r$")
    t.send("\x04")
    t.expect(r"code=0\r$")
    t.prompt()
    for command, code in (("kill -9 $$", 137), ("kill -TERM $$", 143), ("exit 255", 255)):
        says(t, f"{EXEC} sim -- sh -c '{command}'; echo code=$?", rf"code={code}\r$")
    says(t, f"{EXEC} sim -- /nowhere; echo code=$?", r"(?s)skiff: /nowhere.*code=127\r$")
    assert modes(t) == before, "the terminal's settings have changed"


def in_pipes(t):
    """Of the three descriptors only those are replaced that are the user's terminal."""
    says(t, f"{EXEC} sim -- sh -c 'test -t 0; echo in=$?; test -t 2; echo err=$?' | cat", r"in=0\r\nerr=0\r$")
    says(t, f"echo words | {EXEC} sim -- sh -c 'cat; test -t 1; echo out=$?; tty'", r"words\r\nout=0\r\nnot a tty\r$")
    says(t, f"{EXEC} sim -- sh -c 'printf \"a\\nb\\n\" >&2' 2>&1 >/dev/null | od -An -c", r"a  \\n   b  \\n\r$")


def last_words(t):
    """Nothing of what was shown is lost, however quickly the end comes, nor of what is typed faster than it is read."""
    for _ in range(20):
        t.line(f"{EXEC} sim -- sh -c 'seq 2000; echo la\\st'; echo code=$?")
        t.expect(r"code=0\r$")
        shown = [line for line in t.before.split("\r\n") if line.isdigit()]
        assert shown == [str(n) for n in range(1, 2001)], f"{len(shown)} lines"
        t.prompt()
    t.line(f"{EXEC} sim -- sh -c 'stty -echo; echo begun; sleep 0.5; sha256sum'")
    t.expect("^begun")
    text = "".join(f"{n} {'x' * 60}\n" for n in range(2000))
    for at in range(0, len(text), 1000):
        t.send(text[at : at + 1000])
    t.send("\x04")
    t.expect(hashlib.sha256(text.encode()).hexdigest())
    t.prompt()


def killed(t):
    """Whoever is killed leaves no process, and the shell outside has its terminal."""
    before = modes(t)
    for victim in ("relay", "leader"):
        t.line(f"{EXEC} sim -- sh -c 'echo begun; sleep 4711; :'; echo code=$?")
        t.expect("^begun")
        ours = sorted(processes("^skiff instance exec sim"))
        assert len(ours) == 2, ours
        parents = {pid: int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1]) for pid in ours}
        relay = next(pid for pid in ours if parents[pid] not in ours)
        leader = next(pid for pid in ours if parents[pid] == relay)
        os.kill(relay if victim == "relay" else leader, signal.SIGKILL)
        t.expect(r"code=137\r$")
        t.prompt()
        eventually(f"something is left of a session whose {victim} was killed", lambda: not processes("sleep 4711|^skiff instance exec"))
        assert modes(t) == before, f"settings after the end of the {victim}"


def killed_early(t):
    """The same, at whatever moment of the start it is."""
    before = modes(t)
    for n in range(16):
        t.line(f"{EXEC} sim -- sleep 4711; echo code=$?")
        eventually("no session begins", lambda: processes("^skiff instance exec sim"))
        time.sleep(n * 0.003)
        os.kill(min(processes("^skiff instance exec sim")), signal.SIGKILL)
        t.expect(r"code=137\r$")
        t.prompt()
        eventually("something is left of a session", lambda: not processes("sleep 4711|^skiff instance exec"))
        assert modes(t) == before, "settings after an early end"


def hang_up():
    t = terminal.shell("alice")
    t.line(f"{EXEC} sim -- sh -c 'echo begun; sleep 4712; :'")
    t.expect("^begun")
    t.close()
    eventually("a session outlives its terminal", lambda: not processes("sleep 4712|^skiff instance exec"))
    os.kill(t.pid, signal.SIGKILL)
    os.waitpid(t.pid, 0)


def attacks(t):
    """What stays inside has neither the keys of the shell outside nor its settings."""
    before = modes(t)
    t.line(f"{EXEC} sim -- sh -c 'setsid sh -c \"cat >/tmp/heard; stty raw; echo >/tmp/over\" <&0 2>/dev/null & echo le''ft'")
    t.expect("^left")
    t.prompt()
    says(t, "echo a word", "^a word\r$")
    eventually("who was left behind waits", lambda: "over" in skiff("instance", "exec", "sim", "--", "ls", "/tmp"))
    heard = skiff("instance", "exec", "sim", "--", "cat", "/tmp/heard")
    assert heard == "", f"keys were heard: {heard!r}"
    assert modes(t) == before, "settings have changed"


t = terminal.shell("alice")
# A terminal that is another user's, as after `su`, and then one of their own.
in_pipes(t)
last_words(t)
shutil.chown(says(t, "tty", r"^(/dev/pts/\d+)\r$").group(1), "alice", "tty")
for test in (names, programs, keys, in_pipes, last_words, killed, killed_early, attacks):
    test(t)
    print(f"ok {test.__name__}", flush=True)
t.line("exit 3")
assert t.finish() == 3
hang_up()
