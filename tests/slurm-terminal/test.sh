# A person at a terminal inside an environment, who uses Slurm's commands as root there: it is as if they ran right here.
# takes: 8
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
# What salloc starts. It gives the terminal away only then, and waits for ever if bash has looked before, which stops until the terminal is
# its own (so it does without Skiff: no second try would say more).
as alice sh -c 'cat >shell; chmod +x shell' <<'X'
#!/bin/sh
until ps -o tpgid=,pgid= $$ | awk '{ exit $1 != $2 }'; do sleep 0.02; done
PS1='READY> ' exec bash --norc --noediting -i
X
PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/terminal_test.py" || fail 'at the terminal'
as alice skiff env stop dev
idle
