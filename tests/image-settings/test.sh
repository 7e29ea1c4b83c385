# What an image says of its program: whom it runs as, where its data lies, how it is to be ended.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
make_store
image() { # NAME --config JSON: pushes $root, alice pulls it
    push "$1" "$root" "${@:2}"
    ok as alice skiff pull --quiet "$registry/$1"
}
starts() { # WORDS...: alice's `skiff run`, in the background, until its program says that it is ready
    # An earlier one's word must not count: a signal would come before skiff takes any.
    rm -f /home/alice/ready
    start alice sh -c "exec skiff run $* >ready 2>&1"
    eventually 10 grep -q ready /home/alice/ready
}
skeleton "$root"
echo 'app:x:999:998:App:/srv/app:/bin/sh' >>"$root/etc/passwd"
printf 'app:x:998:\nvideo:x:44:other,app\n' >>"$root/etc/group"
install -d -o 999 -g 998 "$root/srv" "$root/srv/app" "$root/data" && echo of-image >"$root/data/file"
install -d "$root/rootdata"
image tools/app:1 --config '{"User":"app","StopSignal":"SIGUSR1","Volumes":{"/data":{},"/rootdata/":{},"/etc/passwd":{},"/new/deep":{}},"Cmd":["id"]}'
app=$registry/tools/app:1

for route in helper none; do
    if [ $route = none ]; then
        export SKIFF_HELPER=none
        ok as alice skiff pull --quiet $app
    fi

    # For himself it is he who runs it; with ids as in a container it is whom the image names, or whom he names.
    if [ $route = helper ]; then
        ok as alice skiff run $app id -un
        equal "$out" alice
    fi
    ok as alice skiff run --root $app
    equal "$out" 'uid=999(app) gid=998(app) groups=44(video),998(app)'
    ok as alice skiff run --root $app sh -c 'echo $HOME $USER $LOGNAME; grep CapEff /proc/self/status; touch /data/x && cat /data/file'
    equal "$out" $'/srv/app app app\nCapEff:\t0000000000000000\nof-image'
    ok as alice skiff run --root -e HOME=/x $app sh -c 'echo $HOME $USER'
    equal "$out" '/x app'
    for who in 'root 0 0' '0 0 0' '999 999 998' 'app:44 999 44' '1234 1234 0' '1234:video 1234 44'; do
        set -- $who
        ok as alice skiff run --user "$1" $app sh -c 'id -u; id -g'
        equal "$out" "$2"$'\n'"$3" "--user $1"
    done
    ok as alice sh -c "echo 'id -un' | skiff shell --user app $app"
    equal "$out" app
    # The same of whoever enters what runs, by docker's option.
    ok as alice skiff run -d --name up --root --user root $app sh -c 'sleep 1000'
    ok as alice skiff env create boxed --base image:$app
    for name in up boxed; do
        for who in 'root 0 root' '0 0 root' 'app 999 app' '999:video 999 app'; do
            set -- $who
            ok as alice skiff exec -u "$1" $name sh -c 'id -u; echo $USER'
            equal "$out" "$2"$'\n'"$3" "exec -u $1 $name"
        done
        fails 125 as alice skiff exec -u nosuch $name id
        has "$err" 'hint: ' 'exec -u nosuch'
    done
    if [ $route = helper ]; then
        ok as alice sh -c 'skiff exec -u alice up id -un; skiff exec -u "$(id -u)" boxed id -un'
        equal "$out" $'alice\nalice' 'exec as oneself'
    fi
    ok as alice skiff rm -f up boxed
    for who in nobody app:nogroup 70000 '' :; do
        fails 125 as alice skiff run --user "$who" $app id
        has "$err" 'hint: ' "--user $who"
    done
    fails 125 as alice skiff run --me --user app $app id
    ok as alice skiff run --user daemon -- id -un
    equal "$out" daemon 'on the host'"'"'s root too'

    # Its volumes take changes, and nothing else does.
    ok as alice skiff run --user root $app sh -c 'touch /data/x /rootdata/x /new/deep/x; ! touch /x /etc/passwd /new/x 2>/dev/null; ls /data'
    equal "$out" $'file\nx'
    ok as alice skiff run --user root $app ls /data
    equal "$out" file

    # SIGTERM becomes the signal that it wants; others stay what they are.
    for sent in TERM USR1 HUP; do
        wanted=USR1
        [ $sent != HUP ] || wanted=HUP
        for user in app root; do
            starts --user $user -v /home/alice:/mnt $app sh -c "'for s in TERM USR1 HUP; do trap \"echo got \$s; exit 3\" \$s; done; echo ready; while :; do sleep 0.05; done'"
            kill -$sent $started
            code=0
            wait $started || code=$?
            equal "$code $(tail -1 /home/alice/ready)" "3 got $wanted" "SIG$sent as $user"
        done
    done
done
unset SKIFF_HELPER

# A signal that nobody knows, a real-time one.
image tools/app:2 --config '{"StopSignal":"SIGRTMIN+3"}'
starts $registry/tools/app:2 sh -c "'echo ready; while :; do sleep 0.05; done'"
kill -TERM $started
code=0
wait $started || code=$?
equal $code $((128 + 37))
image tools/app:3 --config '{"StopSignal":"SIGNONE"}'
ok as alice skiff run $registry/tools/app:3 id -un
has "$err" '"SIGNONE" is not known'

# One for another machine can be pulled and looked at, and what comes of running it is said before it is tried.
push tools/arm:1 "$root" --arch arm64
ok as alice skiff pull --quiet --arch arm64 $registry/tools/arm:1
fails 125 as alice skiff run $registry/tools/arm:1 id -un
has "$err" 'made for linux/arm64'
has "$err" hint:
ok as alice skiff inspect $registry/tools/arm:1
has "$out" arm64
