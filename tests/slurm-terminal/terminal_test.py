import sys
import time

from terminal import PROMPT, Terminal, as_user

ENTER = ["skiff", "env", "exec", "-e", f"PS1={PROMPT}", "dev", "--", "bash", "--norc", "--noprofile", "--noediting", "-i"]
INNER = "bash --norc --noprofile --noediting -i"


def enter():
    t = Terminal(as_user("alice", *ENTER))
    t.line("stty -echo; echo s\\et")
    t.expect("set\r$")
    t.prompt()
    return t


def says(t, command, pattern):
    t.line(command)
    match = t.expect(pattern)
    t.prompt()
    return match


def code(t, wanted):
    says(t, "echo code=$?=", f"code={wanted}=")


def modes(t):
    """The terminal's settings, to see that they come back."""
    return says(t, "stty -g", r"([0-9a-f]+:[0-9a-f:]+)\r").group(1)


def sleeps(t):
    t.line("sh -c 'echo slee\\ps; exec sleep 100'")
    t.expect("slee.?ps")


def twice(t, word):
    """To cat: from it comes what is typed and what is read."""
    t.line(word)
    t.expect(f"(?s){word}.*{word}")


def interactive_step():
    t = enter()
    before = modes(t)
    t.line(f"srun -n1 --pty {INNER}")
    t.prompt()
    t.line("stty -echo; echo s\\et")
    t.expect("set\r$")
    t.prompt()
    says(t, "echo on=$(hostname)=$(id -un)=$SLURM_JOB_ID=", r"on=n[12]=alice=\d+=")
    says(t, "stty size", "33 111")
    t.resize(44, 99)
    for _ in range(50):  # it takes a way over the network
        if says(t, "sleep 0.05; echo size=$(stty size)=", r"size=([\d ]+)=").group(1) == "44 99":
            break
    else:
        sys.exit("FAILED: the window's new size does not arrive")
    # Keys mean what they mean to the shell on the node.
    sleeps(t)
    t.send("\x03")
    t.prompt()
    code(t, 130)
    sleeps(t)
    t.send("\x1a")
    t.expect("Stopped")
    t.prompt()
    says(t, "jobs", r"Stopped +sh -c")
    t.line("fg")
    t.expect("sleep 100")
    time.sleep(0.3)  # the shell says so before it has given the terminal away
    t.send("\x03")
    t.prompt()
    t.line("exit 7")
    t.expect("exit")
    t.prompt()
    code(t, 7)
    if modes(t) != before:
        sys.exit("FAILED: the terminal's settings are not what they were")
    t.line("exit")
    t.finish()


def program_on_its_own_terminal():
    t = enter()
    t.line("srun -n1 --pty cat")
    twice(t, "hello")
    # Without a shell nobody could continue it: the key does nothing.
    t.send("\x1a")
    twice(t, "more")
    t.send("\x04")
    t.prompt()
    code(t, 0)
    t.line("srun -n1 --pty cat")
    twice(t, "again")
    t.send("\x03")
    t.prompt()
    code(t, 130)
    t.line("exit")
    t.finish()


def keys_for_srun():
    t = enter()
    before = modes(t)
    t.line("srun -n1 sh -c 'echo beg\\un; sleep 100'")
    t.expect("beg.?un")
    t.send("\x03")
    t.expect("interrupt .*one more within 1 sec to abort")
    t.send("\x03")
    t.expect("sending Ctrl-C to")
    t.prompt()
    code(t, 130)
    # Stopped, it is a job of the shell inside; continued, it goes on.
    t.line("srun -n1 sh -c 'echo beg\\un; sleep 1; echo do\\ne'")
    t.expect("beg.?un")
    t.send("\x1a")
    t.expect("Stopped")
    t.prompt()
    says(t, "jobs", r"Stopped +srun")
    t.line("fg")
    t.expect("do.?ne")
    t.prompt()
    code(t, 0)
    # In the background it leaves the terminal alone.
    t.line("srun -n1 sh -c 'sleep 0.5; echo ba\\ck' &")
    t.expect(r"\[1\] \d+")
    says(t, "echo st\\ill here", "still here")
    t.line("wait")
    t.expect("ba.?ck")
    t.prompt()
    # What is typed is its standard input; ^D is the end of it.
    t.line("srun -n1 sed -u s.typed.TYPED.")
    t.line("typed")
    t.expect("TYPED")
    t.send("\x04")
    t.prompt()
    says(t, "srun -n1 echo in-a-pipe | cat", "in-a-pipe\r")
    says(t, "echo from-a-pipe | srun -n1 cat", "from-a-pipe\r")
    # The other way round: only the error messages are for the terminal.
    says(t, "srun -n1 sh -c 'echo o; echo e >&2' </dev/null >/tmp/o; sleep 0.1; cat /tmp/o", "e\r\no\r")
    # A session of its own has no terminal.
    says(t, "setsid -w srun -n1 echo far </dev/null 2>&1 | cat", "far\r")
    says(t, "setsid -w script -qec 'srun -n1 --pty tty' /dev/null </dev/null | cat", "/dev/pts/\\d+\r")
    if modes(t) != before:
        sys.exit("FAILED: the terminal's settings are not what they were")
    t.line("exit")
    t.finish()


def allocation():
    t = enter()
    t.line("salloc -N1 /home/alice/shell")
    t.expect("Granted job allocation")
    t.prompt()
    says(t, "srun hostname", r"n[12]\r")
    says(t, "squeue -h -o =%u=%T=", "=alice=RUNNING=")
    sleeps(t)
    t.send("\x03")
    t.prompt()
    code(t, 130)
    t.line("exit 3")
    t.expect("Relinquishing job allocation")
    t.prompt()
    code(t, 3)
    t.line("exit")
    t.finish()


def hang_up():
    """The window is closed: the step ends."""
    t = enter()
    t.line(f"srun -n1 --pty {INNER}")
    t.prompt()
    t.close()


def outside():
    """srun on the bare login node, its step in the environment."""
    t = Terminal(as_user("alice", "srun", "-n1", "--environment=dev", "--pty", "bash", "--norc", "--noprofile", "-i"))
    t.prompt()
    says(t, "stty -echo; stty size", "33 111")
    t.line("exit 9")
    if t.finish() != 9:
        sys.exit("FAILED: exit code")


for test in (interactive_step, program_on_its_own_terminal, keys_for_srun, allocation, hang_up, outside):
    if len(sys.argv) < 2 or test.__name__ in sys.argv[1:]:
        test()
        print(f"ok {test.__name__}", flush=True)
