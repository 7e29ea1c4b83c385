# `skiff checkpoint save` and `restore`: each program of the corpus (tests/programs, one kernel feature each, and each knows whether it came
# back right) comes back right, or is refused beforehand, by `--dry-run` too, and goes on. None comes back wrong with exit code 0.
# time: 900
# takes: 330
. "$(dirname "$0")/../lib.sh"
. "$here/../programs/lib.sh"
needs_criu

# ONLY=NAME of the environment: one of them, with what it said.
judge saved_and_restored "${ONLY:-}"
verdicts
