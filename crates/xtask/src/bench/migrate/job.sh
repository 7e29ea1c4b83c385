# In a job, on its first node: starts one that holds $SIZE MiB of $KIND, moves it with $OPTIONS, ends it.
set -eu
export SKIFF_STATE=/tmp/bench-migrate
$SKIFF instance start --checkpoint host held python3 $DIR/hold.py $SIZE $KIND
until $SKIFF instance logs held | grep -q ready; do sleep 0.05; done
$SKIFF migrate --json $OPTIONS held n2 >$DIR/moved
srun -Q --overlap -N1 -n1 -w n2 $SKIFF instance rm --force held
$SKIFF instance rm held
