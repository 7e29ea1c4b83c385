# takes: 14
# Pulling while the network and the registry fail: what passes is survived, what does not ends with a reason, and nothing that has come
# is fetched again.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root second=$images_tmp/second
skeleton "$root"
# Bytes that cannot be compressed: three ranges.
mkdir "$second" && head -c 17500000 /dev/urandom >"$second/random"
start_registry
start_proxy
push tools/image:1 "$root" "$second" --config '{"Cmd":["sha256sum","/random"]}'
image=$proxy/tools/image:1
digits=$(sha256sum <"$second/random")
large=$(find "$images_tmp/registry" -name data -size +15M -printf '%s\n')
layer=$(find "$images_tmp/registry" -name data -size +15M | xargs dirname | xargs basename)
clean() { # nothing half-made is visible
    equal "$(ls $store/images | grep -v '^[0-9a-f]\{64\}\.\(erofs\|json\)$' || true)" '' 'half-made images'
    equal "$(ls $store/tmp)" '' 'remains of pulls'
    eventually 5 sh -c '! pgrep -u daemon -x skiff'
}
sound() { # WHAT: an image is the same file however it came, so that only the first need be run
    cmp "$store"/images/*.erofs "$images_tmp/good" || fail "the image after $1 is another"
    clean
}
make_store
ok as alice skiff pull --quiet $image
ok as alice skiff run --pull never $image
equal "${out%% *}" "${digits%% *}" 'the image'
ok as alice skiff store verify
cp "$store"/images/*.erofs "$images_tmp/good"
clean

# What passes.
survives() { # MOST-BYTES RULE...
    make_store
    faults "${@:2}"
    ok as alice skiff pull --quiet $image
    sound "$2"
    for rule in "${@:2}"; do
        grep -q " $(json "$rule" 'd["do"]')$" "$proxy_log" || fail "has not happened: $rule"
    done
    [ "$(sent /blobs/)" -lt $((large + $1)) ] || fail "$(sent /blobs/) bytes of $large were sent after $2"
}
survives 3000000 '{"path":"/blobs/","do":"reset","after":1000000,"times":3}' '{"path":"/blobs/","do":"short","after":1000000,"times":3}'
survives 2000000 '{"path":"/v2/","do":500}' '{"path":"/v2/","do":503}' '{"path":"/blobs/","do":502}' '{"path":"/blobs/","do":504}' \
    '{"path":"/manifests/","do":"reset"}' '{"path":"/manifests/","do":"short","after":100}' '{"path":"/manifests/","do":"flip","after":20}'
# A layer that came wrong is fetched again, as nobody knows which byte is.
survives $((large + 2000000)) '{"path":"/blobs/","do":"flip","after":5000000}'
begun=${EPOCHREALTIME/./}
survives 2000000 '{"path":"/blobs/","do":429,"seconds":1}'
[ $((${EPOCHREALTIME/./} - begun)) -ge 1000000 ] || fail 'Retry-After is not heeded'
make_store
faults
kill "$proxy_pid" && try wait "$proxy_pid"
start alice skiff pull --quiet $image
pulling=$started
start_proxy
wait "$pulling"
sound 'refused connections'

# What does not: no image is there then, and one without faults is a matter of course.
make_store
ends() { # PART RULE...
    faults "${@:2}"
    fails 125 as alice skiff pull --quiet $image
    has "$err" "$1"
    has "$err" 'hint: '
    equal "$(ls $store/images)" '' "images after $2"
    clean
    fails 125 as alice skiff run --pull never $image
}
ends 'digest' "{\"path\":\"$layer\",\"do\":\"lie\",\"times\":1000}"
ends '404' '{"path":"/blobs/","do":404,"times":1000}'
ends '429' '{"path":"/blobs/","do":429,"seconds":3600,"times":1000}'
faults
ok as alice skiff pull --quiet $image
sound 'all these, later'

# Killed at any moment, who asked or who writes: what had come by then does not come again.
arrived() { [ "$(sent /blobs/)" -ge "$1" ]; }
for after in 1000000 5000000 9000000; do
    for victim in client writer fetcher; do
        make_store
        faults '{"path":"/blobs/","do":"slow","after":16000000,"times":1000}'
        start alice skiff pull --quiet $image
        eventually 20 arrived $after
        case $victim in
        client) kill -9 "$started" ;;
        *) kill -9 "$(pgrep -u daemon -f "^skiff store-$victim")" ;;
        esac
        try wait "$started"
        eventually 5 sh -c '! pgrep -u daemon -x skiff'
        equal "$(ls $store/images | grep -v '\.lock$' || true)" '' "images after a kill of the $victim"
        first=$(sent /blobs/)
        faults
        ok as alice skiff pull --quiet $image
        sound "a kill of the $victim after $after bytes"
        # In three connections at most some pieces are on their way.
        [ $((first + $(sent /blobs/))) -lt $((large + 4000000)) ] || fail "$first and $(sent /blobs/) bytes were sent of $large"
    done
done

# Who waits for another goes on with what that one has fetched, if he is killed.
make_store
faults '{"path":"/blobs/","do":"slow","after":16000000,"times":1000}'
start alice skiff pull --quiet $image
first=$started
start alice skiff pull --quiet $image
eventually 20 arrived 4000000
kill -9 "$first"
wait "$started"
[ "$(sent /blobs/)" -lt $((large + 4000000)) ] || fail "$(sent /blobs/) bytes were sent of $large"
sound 'a kill of the first of two'

# Tokens: for anybody, for carol; and when one is no longer good in the middle.
stop_registry
python3 "$here/../images/tokens.py" make "$images_tmp"
python3 "$here/../images/tokens.py" serve 127.0.0.1:5002 "$images_tmp" "$images_tmp/tokens.log" 3>&- &
tokens_pid=$!
trap 'kill "$tokens_pid" || true; images_cleanup' EXIT
cp -r "$images_tmp/registry/docker/registry/v2/repositories/tools" "$images_tmp/registry/docker/registry/v2/repositories/private"
auth="auth: {token: {realm: 'http://127.0.0.1:5002/token', service: registry, issuer: tokens, rootcertbundle: $images_tmp/certificate.pem}}"
start_registry
survives 3000000 '{"path":"/blobs/","do":"token"}' "{\"path\":\"$layer\",\"do\":\"token\"}"
[ "$(wc -l <"$images_tmp/tokens.log")" -ge 2 ] || fail 'no other token was asked for'
fails 125 as alice skiff pull --quiet $proxy/private/image:1
has "$err" 'hint: '
fails 125 as alice sh -c "echo wrong | skiff login $proxy --username carol --password-stdin"
ok as alice sh -c "echo 'pass word' | skiff login $proxy --username carol --password-stdin"
ok as alice skiff pull --quiet $proxy/private/image:1
ok as alice skiff run --pull never $proxy/private/image:1
fails 125 as bob skiff pull --quiet $proxy/private/image:1
has "$(cat "$images_tmp/tokens.log")" carol
clean
