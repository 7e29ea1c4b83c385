# An environment from making to removing, and what each command prints.
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
inside alice dev 'echo hi >/etc/marker'
