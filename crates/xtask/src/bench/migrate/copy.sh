# Nothing but the bytes.
set -eu
on n2 python3 $DIR/sink.py $SIZE &
on n1 python3 $DIR/source.py $SIZE
wait
