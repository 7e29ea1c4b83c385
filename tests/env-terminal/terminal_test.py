"""Every command that starts something inside, from an interactive shell in a real terminal."""

import os
import pwd
import signal
import subprocess
import time

import terminal


def ways(t):
    t.line("skiff env create dev; echo made")
    t.expect("^made")
    t.prompt()
    t.line("skiff instance start --checkpoint host sim sleep 100000; echo started")
    t.expect("^started")
    t.prompt()
    # In the last one the terminal is the instance's own, and relayed.
    return ["skiff run --", "skiff env exec dev --", "skiff env exec --me dev --", "skiff instance exec sim --"]


def size(t, way):
    t.resize(33, 111)
    t.line(f"{way} sh -c 'stty size; test -t 0 && test -t 1 && echo is a terminal'")
    t.expect(r"^33 111\r$")
    t.expect(r"^is a terminal\r$")
    t.prompt()
    t.line(f"{way} bash -c 'trap \"stty size\" WINCH; echo waiting; while :; do sleep 0.05; done'")
    t.expect("^waiting")
    t.resize(40, 100)
    t.expect(r"^40 100\r$")
    # Bash takes no notice of a Ctrl-C while it waits for the `stty` of the trap.
    time.sleep(0.2)
    t.send("\x03")
    t.prompt()


def interrupt(t, way):
    t.line(f"{way} sh -c 'echo begun; sleep 100'; echo code=$?")
    t.expect("^begun")
    # A shell that is just starting a command may lose a Ctrl-C, outside of Skiff as well.
    time.sleep(0.2)
    t.send("\x03")
    # An interactive bash goes on to the next command of a list only if it was not interrupted: both are right.
    t.prompt()
    t.line("echo code=$?")
    t.expect(r"^code=(130|0)\r$")
    t.prompt()
    # Once, and to all of the foreground.
    t.line(f"{way} sh -c 'trap \"echo caught\" INT; echo begun; sleep 1; sleep 0.3; echo over'; echo code=$?")
    t.expect("^begun")
    time.sleep(0.2)
    t.send("\x03")
    t.expect(r"code=0\r$")
    assert t.before.count("caught") == 1, f"{way}: {t.before!r}"
    t.prompt()


def stop_and_go(t, way):
    t.line(f"{way} sh -c 'echo begun; read line; echo got $line; exit 5'")
    t.expect("^begun")
    t.send("\x1a")
    t.expect("Stopped")
    t.prompt()
    t.line("echo at the shell")
    t.expect("^at the shell")
    t.prompt()
    t.line("fg")
    t.line("more")
    t.expect(r"^got more\r$")
    t.prompt()
    t.line("echo code=$?")
    t.expect(r"^code=5\r$")
    t.prompt()
    # Stopped, continued in the background, ended from there.
    t.line(f"{way} sleep 100")
    time.sleep(0.3)
    t.send("\x1a")
    t.expect("Stopped")
    t.prompt()
    t.line("bg; kill %%; wait %%; echo code=$?")
    t.expect(r"^code=143\r$")
    t.prompt()


def background(t, way):
    # It does not take the terminal, nor hang.
    t.line(f"{way} sh -c 'sleep 0.2; echo from behind' & wait; echo waited")
    t.expect("^from behind")
    t.expect("^waited")
    t.prompt()
    # One that reads from the terminal is stopped until it is in the foreground.
    t.line(f"{way} sh -c 'read line; echo got $line' &")
    t.prompt()
    time.sleep(0.5)
    t.line("jobs")
    t.expect("Stopped")
    t.prompt()
    t.line("fg")
    t.line("words")
    t.expect("^got words")
    t.prompt()
    t.line(f"{way} seq 3 | {way} tac | cat; echo over")
    t.expect(r"^3\r\n2\r\n1\r\nover")
    t.prompt()


def shell_inside(t, way):
    t.line(f"{way}; echo code=$?" if way.endswith("default") else f"{way} bash --norc --noediting -i; echo code=$?")
    t.line("stty -echo; PS1='IN''SIDE> '; unset PROMPT_COMMAND; echo in=$(id -u)")
    t.expect(f"in=(0|{pwd.getpwnam('alice').pw_uid})\\r")
    assert "job control" not in t.before and "no job" not in t.before, t.before
    t.expect("INSIDE> ")
    t.line("sleep 100")
    time.sleep(0.2)
    t.send("\x03")
    t.expect("INSIDE> ")
    t.line("sleep 100")
    time.sleep(0.2)
    t.send("\x1a")
    t.expect("Stopped")
    t.expect("INSIDE> ")
    t.line("fg")
    t.expect("^sleep 100")
    time.sleep(0.2)
    t.send("\x03")
    t.expect("INSIDE> ")
    t.line("exit 9")
    t.expect(r"^code=9\r$")
    t.prompt()
    t.line("stty -a | grep -o ' -\\?echo '; stty -echo")
    t.prompt()


def hang_up():
    """The terminal goes away: so does all that ran in it."""
    t = terminal.shell("bob")
    t.line("skiff env create dev; skiff env exec dev -- sh -c 'echo begun; sleep 1234'")
    t.expect("^begun")
    t.close()
    end = time.monotonic() + 5 * terminal.SLOWNESS
    while subprocess.run(["pgrep", "-u", "bob", "-x", "sleep"], stdout=subprocess.DEVNULL).returncode == 0:
        assert time.monotonic() < end, "a command outlives its terminal"
        time.sleep(0.05)
    os.kill(t.pid, signal.SIGKILL)
    os.waitpid(t.pid, 0)
    subprocess.run(terminal.as_user("bob", "skiff", "env", "rm", "--force", "dev"), check=True)


t = terminal.shell("alice")
for way in ways(t):
    for test in (size, interrupt, stop_and_go, background, shell_inside):
        test(t, way)
shell_inside(t, "skiff env enter default")
t.line("skiff env rm --force dev; skiff instance rm --force sim; exit 3")
assert t.finish() == 3
hang_up()
