# In a job, on its first node: HPL goes to and fro between the two nodes, by $ORDER (`diskless disk ...`) in turn; each line of what comes of
# it is the mode and what the move says of itself. Moved in the part that takes its time, with the matrix in memory.
set -euo pipefail
export SKIFF_STATE=/tmp/bench-migrate
work=/tmp/bench-hpl
here=n1 there=n2
at() { if [ $1 = n1 ]; then "${@:2}"; else srun -Q --overlap -N1 -n1 -w $1 "${@:2}"; fi; }
end() { for node in n1 n2; do at $node $SKIFF instance rm --force hpl 2>&- || true; done; }
trap end EXIT
$SKIFF instance start --checkpoint --net none host hpl bash $DIR/hpcc.sh
until $SKIFF instance exec hpl grep -qs 'Begin of HPL' $work/hpccoutf.txt; do sleep 0.2; done
bytes=0
until [ $bytes -gt $((7 * SIZE * SIZE)) ]; do
    sleep 0.2
    bytes=$($SKIFF checkpoint save --dry-run --json hpl | python3 -c 'import json, sys; print(sum(p["memory"] for p in json.load(sys.stdin)["processes"]))')
done
: >$DIR/moves
for mode in $ORDER; do
    moved=$(at $here $SKIFF migrate --json --mode $mode hpl $there)
    echo "$mode ${moved//$'\n'/}" >>$DIR/moves
    last=$here here=$there there=$last
done
# It has not ended meanwhile.
at $here $SKIFF instance exec hpl pgrep -x hpcc >/dev/null
