"""A real terminal for tests: a command in a pseudo-terminal, and what a person at it would type and see.

Imported by the tests' own Python parts (PYTHONPATH=tests)."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

PROMPT = "READY> "

# As for tests/lib.sh.
SLOWNESS = int(os.environ.get("SKIFF_TEST_SLOWNESS", 1))


class Terminal:
    def __init__(self, argv, rows=33, columns=111):
        self.argv = argv
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Python ignores some signals, which a login does not.
            import signal

            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(argv[0], argv)
        self.seen = ""
        self.resize(rows, columns)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, text):
        os.write(self.fd, text.encode())

    def line(self, text):
        self.send(text + "\n")

    def _read(self, seconds):
        if not select.select([self.fd], [], [], max(seconds, 0))[0]:
            return False
        try:
            piece = os.read(self.fd, 65536)
        except OSError:
            piece = b""
        if not piece:
            raise EOFError
        self.seen += piece.decode(errors="replace")
        return True

    def expect(self, pattern, seconds=30):
        """Waits for a pattern in what has come since the last match; gives the match."""
        end = time.monotonic() + seconds * SLOWNESS
        while True:
            match = re.search(pattern, self.seen, re.MULTILINE)
            if match:
                self.before, self.seen = self.seen[: match.start()], self.seen[match.end() :]
                return match
            try:
                if self._read(end - time.monotonic()):
                    continue
                why = f"after {seconds * SLOWNESS} s"
            except EOFError:
                why = "at the end"
            self._fail(f"no {pattern!r} {why}, but {self.seen!r}")

    def prompt(self):
        return self.expect(PROMPT)

    def set_prompt(self):
        """In an interactive bash: the prompt that is waited for, and no echo of what is typed, which would match what is expected."""
        self.line("PS1='READ''Y> '; stty -echo; bind 'set enable-bracketed-paste off'")
        self.prompt()
        self.line("echo set")
        self.expect("set\r$")
        self.prompt()

    def check_resize(self):
        """A program at this terminal sees its new size."""
        self.resize(50, 160)
        time.sleep(0.3)
        self.line("stty size")
        self.expect(r"^50 160\r$")
        self.prompt()

    def close(self):
        os.close(self.fd)

    def finish(self, seconds=30):
        """Waits for the command's end; gives its exit code, 128+N for a signal."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                self._read(end - time.monotonic())
        except (EOFError, OSError):
            pass
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            time.sleep(0.02)
        self._fail(f"it has not ended, having shown {self.seen!r}")

    def _fail(self, what):
        print(f"FAILED: {self.argv[-1]}: {what}", file=sys.stderr)
        frame = sys._getframe(2)
        while frame:
            print(f"    at {frame.f_code.co_filename}:{frame.f_lineno}", file=sys.stderr)
            frame = frame.f_back
        sys.exit(1)


def as_user(user, *command):
    home = f"/home/{user}"
    variables = [f"HOME={home}", f"USER={user}", f"LOGNAME={user}", "SHELL=/bin/bash", "LANG=C.UTF-8", "TERM=xterm",
                 "PATH=/usr/local/bin:/usr/bin:/bin", f"PS1={PROMPT}"]
    return ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "env", "-i", "-C", home, *variables, *command]


def shell(user):
    """An interactive shell of the user's, as a person would have it."""
    terminal = Terminal(as_user(user, "bash", "--norc", "--noprofile", "--noediting", "-i"))
    # No echo of what is typed: else it would match what is expected.
    terminal.line("stty -echo; echo s\\et")
    terminal.expect("set\r$")
    terminal.prompt()
    return terminal
