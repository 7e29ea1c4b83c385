# In a job, on its first node: an instance with $APPLICATION; after $AFTER seconds, if that says when, it goes to the other node.
set -eu
export SKIFF_STATE=/tmp/bench-apps
there=
$SKIFF instance start --checkpoint --net none host app bash $DIR/run.sh $APPLICATION
trap '$there $SKIFF instance rm --force app' EXIT
until $SKIFF instance logs app | grep -q begin; do sleep 0.02; done
if [ -n "$AFTER" ]; then
    sleep $AFTER
    $SKIFF migrate --json app n2 >$DIR/moved
    $SKIFF instance rm app
    there='srun -Q --overlap -N1 -n1 -w n2'
fi
$there $SKIFF instance logs --follow app >$DIR/said
