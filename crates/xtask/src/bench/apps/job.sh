# In a job, on its first node: an instance with $APPLICATION; after $AFTER seconds, if that says when, it goes to the other node.
set -eu
export SKIFF_STATE=/tmp/bench-apps
there=
$SKIFF instance start --checkpoint --net none host app bash $DIR/run.sh $APPLICATION
# Its command has ended, it itself a moment later.
remove() { for times in {1..50}; do $there $SKIFF instance rm --force app 2>removal && return; sleep 0.1; done; cat removal >&2; }
trap remove EXIT
until $SKIFF instance logs app | grep -q begin; do sleep 0.02; done
if [ -n "$AFTER" ]; then
    sleep $AFTER
    $SKIFF migrate --json app n2 >$DIR/moved
    $SKIFF instance rm app
    there='srun -Q --overlap -N1 -n1 -w n2'
fi
$there $SKIFF instance logs --follow app >$DIR/said
