#!/usr/bin/python3
"""tab.py SHELL <LINES: what the tab key makes of a line, in this shell as alice has it: on each line what is typed, `=>`, and words that must then be
on the screen; behind `!` words that must not be. A space at the line's end is `_`."""
import os
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
from terminal import PROMPT, SLOWNESS, Terminal, as_user

# One key press shows all that fit, and the prompt does not match what is typed to set it.
PROMPT_SET = "'READ''Y> '"
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"],
             f"bind 'set enable-bracketed-paste off'; bind 'set show-all-if-ambiguous on'; PS1={PROMPT_SET}; . /usr/share/bash-completion/completions/skiff"),
    "zsh": (["zsh", "-f", "-i"], f"unsetopt list_ambiguous; unset zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; PS1={PROMPT_SET}"),
    "fish": (["fish", "--private", "-i"], f"set fish_autosuggestion_enabled 0; function fish_prompt; echo -n {PROMPT_SET}; end"),
}


def shown(text):
    """A screen's text without what moves and colours it."""
    text = re.sub(r"\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b\[[0-9;?>=]*[ -/]*[@-~]|\x1b[()][0-9A-B]|\x1b[=>78]", "", text)
    return text.replace("\r", "").replace("\x07", "")


def begin(shell):
    argv, setting = SHELLS[shell]
    terminal = Terminal(as_user("alice", *argv), columns=100)
    terminal.line(setting)
    terminal.expect(PROMPT)
    quiet(terminal)
    return terminal


def quiet(terminal):
    """Reads until nothing comes any more: a line may be drawn more than once."""
    while terminal._read(0.3):
        pass


def after_tab(terminal, typed, wanted, unwanted):
    terminal.seen = ""
    terminal.send(typed + "\t")
    end = time.monotonic() + 10 * SLOWNESS
    while time.monotonic() < end and not all(word in shown(terminal.seen) for word in wanted):
        terminal._read(0.2)
    if unwanted:
        quiet(terminal)
    screen = shown(terminal.seen)
    # The next line begins anew: this one is killed.
    terminal.send("\x15")
    quiet(terminal)
    return screen


bad, terminal = 0, begin(sys.argv[1])
for line in sys.stdin.read().splitlines():
    typed, _, rest = line.partition(" => ")
    wanted, _, unwanted = rest.partition(" ! ")
    typed, wanted, unwanted = re.sub("_$", " ", typed), wanted.split(), unwanted.split()
    screen = after_tab(terminal, typed, wanted, unwanted)
    lacking = [word for word in wanted if word not in screen]
    surplus = [word for word in unwanted if word in screen]
    if lacking or surplus:
        bad += 1
        print(f"{sys.argv[1]}: {typed!r}: lacks {lacking}, should lack {surplus}: {screen!r}", file=sys.stderr)
terminal.close()
os.kill(terminal.pid, 9)
os.waitpid(terminal.pid, 0)
sys.exit(bad)
