# takes: 8
# What one sees of a pull: bars on a terminal, lines elsewhere, JSON for programs, nothing; the list of images; and the question for a
# password, whose answer nobody sees.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
start_registry
start_proxy
make_store
layers=()
for n in 1 2 3 4; do mkdir "$images_tmp/$n" && head -c $((n * 1000000 + 500000)) /dev/urandom >"$images_tmp/$n/file"; layers+=("$images_tmp/$n"); done
push tools/three:1 "${layers[@]:0:3}"
pulled=$pushed
push tools/slow:1 "${layers[3]}"
image=$proxy/tools/three:1
faults '{"path":"tools/slow/blobs/","do":"slow","after":700000,"times":1000}' '{"path":"/blobs/","do":"slow","after":3500000,"times":1000}'

# Where there is no terminal, a line every few seconds: this one goes on meanwhile.
start alice sh -c "exec skiff pull $proxy/tools/slow:1 >slow.out 2>slow.err"
slow=$started

PYTHONPATH=$here/.. python3 "$here/screen_test.py" bars $image

# For programs: each line is an object, no number in it falls, and in the end all is there.
ok as alice skiff pull --progress json $image
equal "$out" "$pulled"
python3 - "$err" <<'X'
import json, sys
lines = [[(l["fetched"], l["unpacked"], l["size"]) for l in json.loads(line)["layers"]] for line in sys.argv[1].split("\n")]
assert len(lines) > 2 and all(len(line) == 3 for line in lines), lines
for before, after in zip(lines, lines[1:]):
    assert all(b[0] <= a[0] and b[1] <= a[1] <= a[0] <= a[2] == b[2] for b, a in zip(before, after)), (before, after)
assert any(fetched < size for fetched, _, size in lines[0]) and all(f == u == s for f, u, s in lines[-1]), lines
X

# Nothing, if that is wished; and not while an image is here already.
ok as alice skiff rmi $image
faults '{"path":"tools/slow/blobs/","do":"slow","after":700000,"times":1000}'
ok as alice skiff pull --quiet $image
equal "$out $err" "$pulled "
ok as alice skiff pull $image
equal "$out $err" "$pulled "
wait $slow
equal "$(wc -l </home/alice/slow.out)" 1
[[ $(head -1 /home/alice/slow.err) =~ ^skiff:\ 0\ of\ 1\ layers,\ [0-9.]+\ [KM]iB\ of\ 4.3\ MiB\ .*\ left$ ]] || fail "slow.err: $(cat /home/alice/slow.err)"
lacks "$(cat /home/alice/slow.err)" $'\e'

# The list of images.
push library/debian:bookworm-slim "${layers[0]}"
ok as alice skiff pull --quiet $registry/library/debian:bookworm-slim
debian=${out#sha256:}
ok as alice skiff pull --quiet "$registry/library/debian@sha256:$debian"
ok as alice skiff images
[ "$(wc -L <<<"$out")" -le 80 ] || fail "$(wc -L <<<"$out") columns: $out"
equal "$(head -1 <<<"$out" | xargs)" 'REPOSITORY TAG DIGEST CREATED SIZE SERVER'
for line in "library/debian bookworm-slim ${debian:0:12} 2026-11-21 1.4 MiB $registry" "library/debian - ${debian:0:12} 2026-11-21 1.4 MiB $registry" \
    "tools/three 1 ${pulled:7:12} 2026-11-21 7.2 MiB $proxy"; do
    has "$(sed 's/  */ /g' <<<"$out")" "$line"
done

stop_registry
start_registry carol 'pass word'
PYTHONPATH=$here/.. python3 "$here/screen_test.py" login $registry
ok as alice skiff pull --quiet $registry/library/debian:bookworm-slim
