# `skiff checkpoint save` and `restore` over an image, whose root takes no changes: the programs of the corpus (tests/programs) that can be saved over
# the host come back right.
# time: 900
# takes: 100
. "$(dirname "$0")/../lib.sh"
. "$here/../images/lib.sh"
. "$here/../programs/lib.sh"
needs_criu
make_store
over_image

# Forty programs are saved and restored at once, of each of five files at the same time.
limit=200
# ONLY=NAME of the environment: one of them, with what it said.
judge_together saved_and_restored "${ONLY:-}"
verdicts
