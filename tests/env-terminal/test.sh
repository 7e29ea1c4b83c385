# A person at a terminal: size, Ctrl-C, Ctrl-Z and fg, job control inside, the terminal given back.
# takes: 8
. "$(dirname "$0")/../lib.sh"
PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/terminal_test.py" || fail 'at the terminal'
ok as alice skiff env stop default
# The supervisor's look at the host in the background ends when that has.
eventually 3 sh -c '! pgrep -u alice'
