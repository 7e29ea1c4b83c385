"""`ssh -tt` to a login that Skiff takes: what a person sees and types."""

import os
import signal
import subprocess
import time

import terminal

SSH = ["ssh", "-F", os.environ["SSH_CONFIG"]]


def gone(*pattern):
    end = time.monotonic() + 8 * terminal.SLOWNESS
    while subprocess.run(["pgrep", "-u", "alice", *pattern], stdout=subprocess.DEVNULL).returncode == 0:
        assert time.monotonic() < end, f"left after the end of the session: {pattern}"
        time.sleep(0.05)


def login():
    t = terminal.Terminal(SSH + ["-tt", "alice@ctl"])
    t.set_prompt()
    return t


t = login()
t.line("stty size; tty; id -u")
t.expect(r"^33 111\r\n/run/skiff/terminals/\d+\r\n0\r$")
t.prompt()
t.check_resize()
# Keys: for what runs, not for the shell.
t.line("sleep 100")
time.sleep(0.3)
t.send("\x03")
t.prompt()
t.line("sleep 100")
time.sleep(0.3)
t.send("\x1a")
t.expect("Stopped")
t.prompt()
t.line("fg")
t.expect("^sleep 100")
time.sleep(0.2)
t.send("\x03")
t.prompt()
t.line("cat")
t.line("a line")
t.expect("^a line")
t.send("\x04")
t.prompt()
# A second session sees the first's processes, and its changes.
t.line("echo first >/etc/from-first; sleep 4321 &")
t.prompt()
second = login()
second.line("cat /etc/from-first; pgrep -x sleep | wc -l; exit 3")
second.expect(r"^first\r\n1\r$")
code = second.finish()
assert code == 3, f"exit code {code}"
t.line("kill %1; exit 9")
code = t.finish()
assert code == 9, f"exit code {code}"
gone("-x", "sleep")

# A command at a terminal: Ctrl-C, and a Ctrl-Z that no shell is there to answer.
t = terminal.Terminal(SSH + ["-tt", "alice@ctl", "stty -echo; echo begun; exec sleep 100"])
t.expect("^begun")
t.send("\x03")
assert t.finish() in (130, 255), "Ctrl-C"
t = terminal.Terminal(SSH + ["-tt", "alice@ctl", "stty -echo; echo begun; read line; echo got $line"])
t.expect("^begun")
t.send("\x1a")
time.sleep(0.5)
t.line("words")
t.expect("^got words")
assert t.finish() == 0

# The connection breaks: what ran at its terminal ends.
for end in (signal.SIGTERM, signal.SIGKILL):
    t = terminal.Terminal(SSH + ["-tt", "alice@ctl", "stty -echo; echo begun; sleep 1234"])
    t.expect("^begun")
    os.kill(t.pid, end)
    t.finish()
    gone("-x", "sleep")
t = login()
t.line("sleep 2345")
time.sleep(0.3)
os.kill(t.pid, signal.SIGKILL)
t.finish()
gone("-x", "sleep")
