# A person at a terminal inside an environment, who uses Slurm's commands as root there: it is as if they ran right here.
# takes: 8
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
# salloc's shell reads it.
as alice sh -c "echo \"PS1='READY> '\" >.bashrc"
PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/terminal_test.py" || fail 'at the terminal'
as alice skiff env stop dev
idle
