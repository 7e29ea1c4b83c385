# takes: 15
# docs/coming-from.md: each line of it does what the page says, as alice, and by the other programs' names where Skiff has these.
. "$(dirname "$0")/../lib.sh"
# Where the nodes reach it too.
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
# As udev leaves it, for networks of her own.
mode=$(stat -c %a /dev/net/tun)
trap 'chmod "$mode" /dev/net/tun; rm -f /etc/cdi/nvidia.yaml; images_cleanup' EXIT
chmod 666 /dev/net/tun
page=/usr/share/doc/skiff/coming-from.md
root=$images_tmp/root
skeleton "$root"
ln -sf busybox "$root/bin/true"
mkdir "$root/usr/share" && echo 'Debian, as it seems' >"$root/etc/issue"
start_registry
make_store
node_stores
push library/debian:12 "$root" --config '{"Cmd":["sh"],"Env":["PATH=/usr/bin:/bin"]}'
printf '[[registry]]\nlocation = "docker.io"\n[[registry.mirror]]\nlocation = "%s"\ninsecure = true\n' $registry >>/home/alice/.config/containers/registries.conf
printf '[[registry]]\nprefix = "registry.site"\nlocation = "%s"\ninsecure = true\n' $registry >>/home/alice/.config/containers/registries.conf
# A GPU that is nothing but a variable.
mkdir -p /etc/cdi
printf 'cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: "0"\n  containerEdits:\n    env: [HAS_GPU=yes]\n' >/etc/cdi/nvidia.yaml
as alice sh -c 'mkdir data bin; echo here >data/file; echo B=2 >variables
    printf "Bootstrap: docker\nFrom: debian:12\n%%runscript\n    cat /etc/issue\n" >solver.def'
for name in docker podman apptainer singularity ch-run; do as alice ln -s /usr/bin/skiff bin/$name; done

column() { # SECTION NUMBER: the lines of a column of the section's table
    awk -v section="## $1" -v column="$2" -F ' [|] |^[|] | [|]$' '$0 == section { on = 1; next } /^## / { on = 0 }
        on && /^[|] `/ { print $(column + 1) }' "$page"
}
typed() { # LINE: as alice types it in her home, at no terminal
    as alice env PATH=/home/alice/bin:/usr/local/bin:/usr/bin:/bin sh -c "$1" </dev/null
}
plain() { # LINE: without the marks of code
    local line=${1#\`}
    echo "${line%\`}"
}

known='^([A-Z_]+=[^ ]* )?(docker|podman|apptainer|singularity|ch-run) '
lines=0
for section in 'Docker and Podman' 'Apptainer and Singularity' Charliecloud 'Enroot and Pyxis' Sarus; do
    for number in 2 1; do
        mapfile -t rows < <(column "$section" $number)
        [ ${#rows[@]} -gt 5 ] || fail "$section: only ${#rows[@]} lines"
        for row in "${rows[@]}"; do
            line=$(plain "$row")
            # Of other programs only those that Skiff can be called as.
            [ $number = 2 ] || [[ $line =~ $known ]] || continue
            try typed "$line"
            [ "$code" = 0 ] || fail "exit code $code: $line$(said)"
            case $line in
            *issue) equal "$out" 'Debian, as it seems' "$line" ;;
            *'ls /data' | *'ls /in' | *'ls /mnt') equal "$out" file "$line" ;;
            *'kernel/hostname') equal "$out" n1 "$line" ;;
            *"ulimit -n'") equal "$out" 512 "$line" ;;
            *'ls /a /b') has "$out" passwd "$line" && has "$out" file "$line" ;;
            *' pwd') [[ $out = /usr || $out = /tmp ]] || fail "$line: $out" ;;
            *--gpus* | *--nv* | *nvidia.com*) has "$out" HAS_GPU=yes "$line" ;;
            *' A=1 '*) has "$out" A=1 "$line" ;;
            *'/dev/fuse') equal "$out" /dev/fuse "$line" ;;
            *'{{.Image}}'*) has "$out" 'web image:debian:12' "$line" ;;
            esac
            lines=$((lines + 1))
        done
    done
done
[ $lines -gt 100 ] || fail "only $lines lines were run"
# As docker it is docker's way: root, nothing of the host.
ok typed 'docker run debian:12 sh -c "id -u; ls ~; [ -e \$HOME/data ] || echo none"'
equal "$out" $'0\nnone'
ok typed 'docker run debian:12 sh -c "pwd; echo \$HOME; cat etc/issue"'
equal "$out" $'/\n/root\nDebian, as it seems'
ok typed 'docker run -u 1234 -e HOME=/x debian:12 sh -c "pwd; echo \$HOME"'
equal "$out" $'/\n/x'
ok typed 'docker run -d --name homely debian:12 sleep 600; docker exec homely sh -c "pwd; echo \$HOME; id -u"; docker rm -f homely'
equal "$(tail -3 <<<"$out")" $'/\n/root\n0'
ok typed 'A=1 apptainer exec docker://debian:12 sh -c "id -un; cat ~/data/file; echo \$A"'
equal "$out" $'alice\nhere\n1'
fails 3 typed 'podman run debian:12 sh -c "exit 3"'

# A name that somebody else has chosen becomes no option, where a script writes `--` in front of it or the name has something before it.
for line in 'docker run --rm -- --volume=/home/alice/data:/x debian:12 ls /x' 'podman run -- --volume=/home/alice/data:/x debian:12 ls /x' \
    'docker rmi -- --help' 'apptainer exec -- --bind=/home/alice/data:/x debian:12 ls /x' 'ch-run -- --bind=/home/alice/data:/x debian:12 -- ls /x' \
    'apptainer exec docker://--bind=/home/alice/data:/x debian:12 ls /x'; do
    fails 125 typed "$line"
    has "$err" 'no name begins with a dash' "$line"
    lacks "$out" file "$line"
done
ok typed 'docker run --rm -- debian:12 cat /etc/issue'
equal "$out" 'Debian, as it seems'

mapfile -t rows < <(column 'Not here' 1)
mapfile -t nearest < <(column 'Not here' 2)
[ ${#rows[@]} -gt 20 ] || fail "only ${#rows[@]} lines are not here"
for i in "${!rows[@]}"; do
    line=$(plain "${rows[i]}") part=$(plain "${nearest[i]}")
    fails 125 typed "$line"
    has "$err" 'hint: ' "$line"
    has "$err" "$part" "$line"
done

# What is here counts before what a registry may have: an environment, an instance, a path, a program. None is asked.
asked_before=$(wc -l <"$registry_log")
ok as alice skiff env create tools
ok as alice skiff run -d --name busy debian:12 sleep 600
for case in 'tools|skiff env exec tools' 'busy|skiff exec busy' 'data|skiff run ./data' 'id|skiff run -- id'; do
    fails 125 as alice skiff run "${case%|*}" true
    has "$err" "hint: ${case#*|}" "skiff run ${case%|*}"
    has "$err" "skiff pull ${case%|*}"
done
equal "$(wc -l <"$registry_log")" "$asked_before" 'requests to the registry'
# What is printed for programs is as docs/json.md says. (What needs a cluster, a checkpoint or a network is looked at where that is tested.)
ok as alice skiff run -d --name ended debian:12 sh -c 'exit 3'
eventually 5 sh -c 'setpriv --reuid alice --clear-groups env -i HOME=/home/alice skiff instance list | grep -q "exited 3"'
ok as alice skiff exec tools true
ok as alice skiff env exec --root tools -- touch /etc/changed
for line in 'env list' 'env show tools' 'env refresh tools' 'env status tools' 'env diff tools' 'env enter --dry-run tools' 'instance list' ps images \
    'inspect debian:12' 'history debian:12' 'pull debian:12' 'run --dry-run debian:12' 'shell --dry-run debian:12' \
    'instance start --dry-run debian:12 web' doctor config 'store du' 'store verify' 'store gc --dry-run'; do
    fits as alice skiff ${line%% --*} --json ${line#"${line%% --*}"}
done
ok as alice skiff rm ended

ok as alice skiff rm -f tools busy

# Without a name service it is said within a second that there is none: one that is silent, and one that is not there.
rm /home/alice/.config/containers/registries.conf
cp --preserve /etc/resolv.conf "$images_tmp/resolv.conf"
trap 'cat "$images_tmp/resolv.conf" >/etc/resolv.conf; chmod "$mode" /dev/net/tun; rm -f /etc/cdi/nvidia.yaml; images_cleanup' EXIT
echo nameserver 127.0.0.1 >/etc/resolv.conf
unresolved() {
    local since=${EPOCHREALTIME/./}
    fails 125 as alice skiff run nosuch:1 true
    [[ $err == *'hint: look at the '*'name service'* ]] || fail "no hint: $err"
    took=$(((${EPOCHREALTIME/./} - since) / 1000))
    [ $took -lt $((1000 * slowness)) ]
}
unresolved || unresolved || fail "without a name service: $took ms"
/usr/bin/python3 -c 'import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(("127.0.0.1", 53)); time.sleep(60)' 3>&- &
silent=$!
eventually 5 grep -q ':0035 ' /proc/net/udp
unresolved || unresolved || fail "with a silent name service: $took ms"
has "$err" 'skiff pull nosuch:1'
kill $silent
# One whose answer (here, that there is no such host) comes after 2 s, as where the first of two servers is down: `pull` waits for it.
/usr/bin/python3 - 3>&- <<'E' &
import socket, time
s = socket.socket(type=socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
s.settimeout(60)
waiting = []
while True:
    s.settimeout(0.1 if waiting else 60)
    try:
        waiting.append((time.monotonic() + 2, *s.recvfrom(512)))
    except TimeoutError:
        if not waiting:
            break
    while waiting and waiting[0][0] <= time.monotonic():
        _, asked, who = waiting.pop(0)
        # The same question, answered by NXDOMAIN.
        s.sendto(asked[:2] + b"\x81\x83" + asked[4:6] + bytes(6) + asked[12:], who)
E
slow=$!
eventually 5 grep -q ':0035 ' /proc/net/udp
unresolved || unresolved || fail "with a slow name service: $took ms"
has "$err" 'has not said within 0.7 s'
since=${EPOCHREALTIME/./}
fails 125 as alice skiff pull nosuch:1
took=$(((${EPOCHREALTIME/./} - since) / 1000))
[ $took -ge 2000 ] || fail "pull waited for $took ms only"
has "$err" 'failed to lookup address information'
kill $slow
