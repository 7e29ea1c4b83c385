"""What a person sees on a terminal.

    screen_test.py bars IMAGE       pulls it twice, on a usual terminal and on a tiny one
    screen_test.py login SERVER     logs in as carol
"""

import re
import subprocess
import sys
import termios

from terminal import Terminal, as_user

BAR = re.compile(r"sha256:[0-9a-f]{12} \[=*-* *\] +([\d.]+ [KMG]?i?B) / ([\d.]+ [KMG]?i?B)")
TOTAL = re.compile(r"(\d) of 3 layers, ([\d.]+) ([KM]?i?B) of ([\d.]+) MiB \([\d.]+ [KM]?i?B/s\)(, \d+ (s|min|h) left)?")
DIGEST = re.compile("sha256:[0-9a-f]{64}")
UNITS = {"B": 1, "KiB": 1024, "MiB": 1024 * 1024}


class Screen:
    """As much of a terminal as bars need. No line may reach its edge, where it would wrap."""

    def __init__(self, columns, rows):
        self.columns, self.rows, self.lines, self.row = columns, rows, [""], 0
        self.frames = []

    def feed(self, text):
        for up, erase, newline, shown in re.findall(r"\x1b\[(\d+)A|\x1b\[(2K|J)|(\r?\n)|(.[^\x1b\r\n]*)", text):
            if up:
                self.row -= int(up)
                assert self.row >= 0, "above the first line"
            elif erase == "2K":
                self.lines[self.row] = ""
            elif erase == "J":
                del self.lines[self.row + 1 :]
                self.lines[self.row] = ""
                self.frames.append(list(self.lines))
            elif newline:
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            else:
                assert len(shown) < self.columns or DIGEST.fullmatch(shown), shown
                self.lines[self.row] = shown
            assert len(self.lines) <= self.rows, self.lines


def bars(image, rows, columns):
    terminal = Terminal(as_user("alice", "skiff", "pull", image), rows, columns)
    code = terminal.finish(60)
    screen = Screen(columns, rows)
    screen.feed(terminal.seen)
    assert code == 0, terminal.seen
    # No bar stays.
    assert len(screen.lines) == 2 and DIGEST.fullmatch(screen.lines[0]) and not screen.lines[1], screen.lines
    subprocess.run(as_user("alice", "skiff", "rmi", image), check=True)
    return screen.frames


def usual(image):
    frames = bars(image, 24, 80)
    seen = 0
    for *shown, last in [frame[:-1] for frame in frames[:-1]]:
        assert all(BAR.fullmatch(bar) for bar in shown), shown
        total = TOTAL.fullmatch(last)
        assert total and len(shown) == 3 - int(total[1]), (shown, last)
        now = float(total[2]) * UNITS[total[3]]
        assert now >= seen, frames
        seen = now
    assert len(frames[0]) == 5 and len(frames) > 4, frames


def login(server):
    def asks(password):
        terminal = Terminal(as_user("alice", "skiff", "login", server))
        terminal.expect("Username: ")
        terminal.line("carol")
        terminal.expect("^Password: ")
        terminal.send(password)
        code = terminal.finish()
        assert "pass" not in terminal.seen and "wrong" not in terminal.seen, terminal.seen
        assert termios.tcgetattr(terminal.fd)[3] & termios.ECHO, "the terminal does not show what is typed"
        return code

    assert asks("wrong\n") == 125
    # Ctrl-C, in the middle of it.
    assert asks("pass\x03") == 130
    assert asks("pass word\n") == 0


if sys.argv[1] == "bars":
    usual(sys.argv[2])
    assert all(len(frame) <= 6 for frame in bars(sys.argv[2], 6, 40))
else:
    login(sys.argv[2])
