# A terminal that `instance exec` brings to an instance with terminals of its own: it has a name inside, programs that need one work, keys mean what
# they do outside, nothing that is shown is lost, whoever is killed leaves nothing, and what stays inside reaches the user's terminal no more.
# takes: 20
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
ok as alice skiff instance start --checkpoint host sim sleep 100000
PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/terminal_test.py" || fail 'at the terminal'
ok as alice skiff instance rm --force sim
eventually 3 sh -c '! pgrep -u alice'
