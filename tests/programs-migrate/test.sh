# `skiff migrate`: the programs of the corpus (tests/programs) that can be saved come back right when they go from one node to another, where clocks
# say less, in each mode. With SKIFF_PROGRAMS in the environment, as `cargo xtask programs` has it: all of them by these ways. With SKIFF_PROGRAMS_OVER=image
# over an image instead of the host.
# time: 5400
# takes: 60
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
. "$here/../programs/lib.sh"
needs_criu
cd /home/alice
daemons
own_disks
own_nodes=1
if [ "${SKIFF_PROGRAMS_OVER:-host}" = image ]; then
    . "$here/../images/lib.sh"
    node_stores
    over_image n1 n2
fi

if [ -z "${SKIFF_PROGRAMS:-}" ]; then
    judge_together migrated_each_way
else
    for way in $SKIFF_PROGRAMS; do
        case $way in
            # Alone, as it also says what is refused.
            saved_and_restored | migrated_diskless) judge "$way" "${ONLY:-}" ;;
            *) judge_together "$way" "${ONLY:-}" ;;
        esac
    done
fi
verdicts
