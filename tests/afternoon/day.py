"""A day at the terminal: what is typed, and what must then be on the screen."""

import os
import re
import subprocess
import sys
import time

from terminal import SLOWNESS

CONFIG, PACKAGE = sys.argv[1:]
SSH = f"ssh -F {CONFIG}"
# As Debian's shells print it, with the environment's name in front.
PROMPT = r"^\(default\)root@ctl:\S+#"


def tmux(*words):
    return subprocess.run(["tmux", "-L", "afternoon", "-f", "/dev/null", *words], check=True, capture_output=True, text=True).stdout


class Screen:
    """A window of tmux's, 80 columns wide, as a person sees it."""

    def __init__(self, name, command):
        self.name = name
        tmux("new-session", "-d", "-s", name, "-x", "80", "-y", "24", command)
        self.begun = 0

    def text(self):
        # Lines that go on in the next one are one line again.
        lines = tmux("capture-pane", "-p", "-J", "-t", self.name, "-S", "-").split("\n")
        return "\n".join(line.rstrip() for line in lines).rstrip("\n")

    def keys(self, *keys):
        tmux("send-keys", "-t", self.name, *keys)

    def wait(self, pattern, seconds=30):
        """Until the pattern is in what has appeared since the last command was typed."""
        end = time.monotonic() + seconds * SLOWNESS
        while True:
            new = self.text()[self.begun :]
            match = re.search(pattern, new, re.MULTILINE)
            if match:
                return match
            if time.monotonic() > end:
                self.fail(f"no {pattern!r} after {seconds * SLOWNESS} s")
            time.sleep(0.03)

    def prompt(self, seconds=30):
        return self.wait(PROMPT + r"\Z", seconds)

    def type(self, line, *expected, seconds=30, prompt=True):
        """Types a line, and waits for the prompt; each pattern must be in what it prints."""
        self.begun = len(self.text())
        tmux("send-keys", "-t", self.name, "-l", line)
        self.keys("Enter")
        if prompt:
            self.prompt(seconds)
        for pattern in expected:
            self.wait(pattern, seconds if not prompt else 0)
        return self.text()[self.begun :]

    def never(self, pattern):
        match = re.search(pattern, self.text()[self.begun :], re.MULTILINE)
        if match:
            self.fail(f"{match.group()!r} on the screen")

    def fail(self, what):
        frame = sys._getframe(1)
        places = []
        while frame:
            places.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
            frame = frame.f_back
        print(f"FAILED: {what} ({', '.join(places)}); the screen:\n{self.text()[-3000:]}", file=sys.stderr)
        sys.exit(1)


# Morning. She logs in, and is in an environment of her own; the second step of README works here, too.
her = Screen("her", f"{SSH} -tt alice@ctl")
her.prompt()
her.type("id -un; pwd", r"^root$", r"^/home/alice$")
her.type("skiff env list", r"^default +host +\S+ \S+ +1 session")
her.type("skiff env diff")
her.never(r"^skiff: ")

# Software: a package, by the distribution's own tool. What has come with it shows.
laptop = Screen("laptop", "bash --norc")
tmux("send-keys", "-t", "laptop", "-l", f"PS1='laptop$ '; clear; scp -F {CONFIG} {PACKAGE} alice@ctl:; echo code $?")
laptop.keys("Enter")
laptop.wait("^code 0$")
her.type("apt-get install -y ./lab-tool.deb", r"Setting up lab-tool \(1.0\)")
her.type("lab-tool", "^42 by ctl as root$")
her.type("skiff env diff | grep lab", "^A /usr/bin/lab-tool$")
her.type("skiff env show", "^running +1 session")

# Keys: a slip that is broken off, one that is stopped, a line that is called back, a window that becomes wider.
her.type("sleep 1000", prompt=False)
time.sleep(0.2)
her.keys("C-c")
her.prompt()
her.type("skiff run -- sleep 1000", prompt=False)
time.sleep(0.5)
her.keys("C-c")
her.prompt()
her.type("lab-tool")
her.begun = len(her.text())
her.keys("Up", "Enter")
her.wait("^42 by ctl as root$")
her.prompt()
tmux("resize-window", "-t", "her", "-x", "100", "-y", "30")
time.sleep(0.3)
her.type("stty size", "^30 100$")
tmux("resize-window", "-t", "her", "-x", "80", "-y", "24")
# The names of environments by Tab, as Debian's bash-completion would load it.
her.type(". /usr/share/bash-completion/completions/skiff")
her.begun = len(her.text())
tmux("send-keys", "-t", "her", "-l", "skiff env show def")
her.keys("Tab")
her.wait("skiff env show default")
her.keys("Enter")
her.wait("^environment +default")
her.prompt()

# Jobs: the same software on the nodes, at once and from a script that she writes.
her.type("srun -N2 lab-tool | sort", r"^42 by n1 as alice\n42 by n2 as alice$")
her.type("cat >job.sh", prompt=False)
for line in ["#!/bin/bash", "#SBATCH -N2", "srun lab-tool | sort", "echo over"]:
    tmux("send-keys", "-t", "her", "-l", line)
    her.keys("Enter")
her.keys("C-d")
her.prompt()
job = re.search(r"^Submitted batch job (\d+)", her.type("sbatch job.sh", r"^Submitted batch job \d+"), re.MULTILINE).group(1)
her.type(f"until grep -q over slurm-{job}.out; do sleep 0.2; done; cat slurm-{job}.out", r"^42 by n1 as alice\n42 by n2 as alice\nover$")
her.type("while squeue -h | grep .; do sleep 0.2; done", seconds=60)
her.type("srun --pty bash", prompt=False)
her.wait(r"^\(default\)alice@n\d:\S+\$\Z")
her.type("lab-tool; exit", r"^42 by n1 as ")

# Images, here and on the nodes.
her.type("skiff pull debian:12", r"^sha256:[0-9a-f]{64}$")
her.type("skiff run debian:12 cat /etc/issue", "^Debian, as it seems$")
her.type("skiff images", r"^debian +12 ")
her.type("srun -N2 --environment=image:debian:12 cat /etc/issue", "^Debian, as it seems\nDebian, as it seems$")
her.type("skiff run -d --name web debian:12 sh -c 'while date; do sleep 1; done'", "^web$")
her.type("skiff logs web", r"UTC|:\d\d")
her.type("skiff exec web pwd", "^/")
her.type("skiff ps", "^web +image:.*instance", "^default ")
her.type("skiff stop -t 1 web && skiff rm web")

# Meanwhile the administrator installs something. It is there in the next session, in which she also breaks the first one off: the connection
# ends, and nothing else does.
her.type("cp /bin/sleep ~/nightly; (setsid ~/nightly 1000 >/dev/null 2>&1 &)")
with open("/usr/local/bin/site-tool", "w") as tool:
    tool.write("#!/bin/sh\necho of the site\n")
os.chmod("/usr/local/bin/site-tool", 0o755)
again = Screen("again", f"{SSH} -tt alice@ctl")
again.prompt()
again.type("site-tool; lab-tool", "^of the site\n42 by ctl as root$")
pid = tmux("display-message", "-p", "-t", "her", "#{pane_pid}").strip()
os.kill(int(pid), 9)
again.type("pgrep -x nightly | wc -l; pkill -x nightly; rm ~/nightly", "^1$")
her = again

# A long computation, saved and made again.
her.type("skiff instance start --checkpoint host calc sh -c 'i=0; while sleep 0.1; do i=$((i+1)); echo $i; done'")
her.never(r"^skiff: ")
her.type("sleep 1; skiff checkpoint save calc && skiff checkpoint list", "^calc ")
last = int(her.type("skiff logs calc | tail -1", r"^\d+$").strip().split("\n")[-2])
her.type("skiff checkpoint restore calc; sleep 1; skiff logs calc | tail -1")
more = int(her.wait(r"^(\d+)\n\(default\)").group(1))
if more <= last:
    her.fail(f"the restored computation is at {more}, after {last}")
her.type("skiff instance stop calc; skiff instance rm calc; skiff checkpoint rm calc")
her.never(r"^skiff: ")

# Another environment to try something in; its name is at the prompt. The one she is in is not removed by mistake.
her.type("skiff env create trial")
her.type("skiff env enter trial", prompt=False)
her.wait(r"^\(trial\)root@ctl:\S+#\Z")
her.type("touch /etc/tried; exit", r"^exit$")
her.type("skiff env rename trial kept && skiff env diff kept", "^A /etc/tried$")
her.type("skiff env exec kept true && skiff env clone kept copy && skiff env rm copy")
her.never(r"^skiff: ")
her.type("ls /etc/tried", "No such file")
her.type("skiff env rm kept")
her.never(r"^skiff: ")
her.type("skiff env rm default", prompt=False)
her.wait(r"\[y/N\] *\Z")
her.type("n", "left as it is")

# A slip of the fingers; help; the doctor, who finds nothing ill here that is not ill outside.
her.type("skiff imags", "tip: .*'images'")
her.type("skiff help env | head -3", "skiff env")
her.type("skiff doctor | grep -c FAIL", "^0$")
tmux("send-keys", "-t", "again", "exit", "Enter")
end = time.monotonic() + 10
while "again" in subprocess.run(["tmux", "-L", "afternoon", "ls"], capture_output=True, text=True).stdout:
    if time.monotonic() > end:
        her.fail("the session did not end")
    time.sleep(0.05)

# From the laptop: lists by ssh, files, and a last look.
laptop.begun = len(laptop.text())
tmux("send-keys", "-t", "laptop", "-l", f"{SSH} alice@ctl 'skiff env list | cat'; rsync -e '{SSH}' alice@ctl:job.sh . && {SSH} alice@ctl skiff env stop; echo code $?")
laptop.keys("Enter")
laptop.wait("^default +host")
laptop.wait("^code 0$")
