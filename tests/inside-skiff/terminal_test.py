"""Skiff at a terminal inside an environment: keys, sizes, stops, and the question before one saws off the branch one sits on."""

import time

import terminal

AS = ["setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "env", "-i", "-C", "/home/alice", "HOME=/home/alice", "USER=alice",
      "LOGNAME=alice", "SHELL=/bin/bash", "TERM=dumb", "PATH=/usr/local/bin:/usr/bin:/bin"]


t = terminal.Terminal(AS + ["skiff", "env", "enter", "dev"])
t.set_prompt()
# A shell in another environment, from this one: size, keys, job control.
t.line("skiff env enter other")
t.set_prompt()
t.line("stty size; echo from $debian_chroot")
t.expect(r"^33 111\r\nfrom other\r$")
t.prompt()
t.check_resize()
for key, said in [("\x03", None), ("\x1a", "Stopped")]:
    t.line("sleep 100")
    time.sleep(0.3)
    t.send(key)
    if said:
        t.expect(said)
    t.prompt()
t.line("kill %1; cat")
t.line("a line")
t.expect("^a line")
t.send("\x04")
t.prompt()
t.line("exit 3")
t.prompt()
t.line("echo code $?")
t.expect("code 3")
t.prompt()
# A key for the command alone, in the foreground of the shell inside; then stopped and gone on with by that shell.
t.line("skiff run -- sleep 100")
time.sleep(0.5)
t.send("\x03")
t.prompt()
t.line("echo code $?")
t.expect("code 130")
t.prompt()
t.line("skiff run -- sleep 100")
time.sleep(0.5)
t.send("\x1a")
t.expect("Stopped")
t.prompt()
t.line("fg")
t.expect("skiff run -- sleep 100")
time.sleep(0.3)
t.send("\x03")
t.prompt()
# Begun in the background, it gets what is typed once it is in the foreground, of which no signal tells.
t.line("skiff run -- cat &")
t.prompt()
time.sleep(0.5)
t.line("fg")
t.expect("skiff run -- cat")
time.sleep(0.5)
# A key that takes back another one does so, though the shell read a line, and so took each key as it was, when the command began.
t.line("typex\x7fd later")
t.expect("^typed later\r$")
t.send("\x04")
t.prompt()
t.line("skiff pull registry.invalid/x; echo code $?")
t.expect("code 125")
t.prompt()
# A command that asks.
t.line("skiff login registry.invalid")
t.expect("[Uu]ser")
t.send("\x03")
t.prompt()
# A pipe at the terminal.
t.line("skiff env list | wc -l")
t.expect(r"^4\r$")
t.prompt()
# The question: no, and the environment is as it was. (Yes ends this terminal, too.)
for command in ["skiff env rm dev", "skiff env stop"]:
    t.line(command)
    t.expect(r"You are in environment dev\..*\[y/N\] ")
    t.line("n")
    t.expect("left as it is")
    t.prompt()
# What somebody wanted to keep does not go without a question.
t.line("skiff env create tagged; skiff env snapshot -t v1 tagged")
t.prompt()
t.line("skiff env rm tagged")
t.expect(r"its history goes with it: 1 snapshot and tag v1\. Remove it\? \[y/N\] ")
t.line("n")
t.expect("left as it is")
t.prompt()
t.line("skiff env rm -f tagged; echo rc $?")
t.expect("^rc 0")
t.prompt()
# What is typed ahead is for what comes next, and not eaten by a command that asks nothing.
t.line("skiff env create gone; skiff env enter gone")
t.set_prompt()
t.line("skiff env rm gone")
t.expect(r"\[y/N\] ")
t.line("y")
t.prompt()
t.line("until skiff env list >list; ! grep -q gone list; do sleep 0.1; done; echo is away")
t.expect("^is away")
t.prompt()
t.line("exit")
assert t.finish() == 0
