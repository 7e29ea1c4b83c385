# A program in an image that takes what it can: what it gets from `skiff run`, which shares with it; from `--contain`, `--cleanenv`,
# `--no-home`; and from `--untrusted`, with the helper and without it.
. "$(dirname "$0")/../lib.sh"
. "$here/../images/lib.sh"
cd /home/alice
root=$images_tmp/root
skeleton "$root"
mkdir "$root/kept" "$root/home/alice"
echo of the image >"$root/home/alice/whose"
gcc -static -O1 -o "$root/bin/probe" "$here/probe.c"
ln -s busybox "$root/bin/readlink"
start_registry
make_store
push hostile:1 "$root" --config '{"Env":["FROM_IMAGE=yes"]}'
image=$registry/hostile:1
ok as alice skiff pull --quiet $image

# ---- What she has: keys, an agent, a delegated place, a neighbour process; services that think they talk to her host only.
as alice mkdir .ssh kept
as alice touch mine
echo private | as alice tee .ssh/id_test >/dev/null
mkdir -p /shared && echo site >/shared/of-the-site
start alice sh -c 'sleep 80; : neighbour-of-hers'
start alice /usr/bin/python3 -c '
import socket, time
agent = socket.socket(socket.AF_UNIX); agent.bind("/home/alice/agent"); agent.listen(20)
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\0of-the-host"); abstract.listen(20)
loopback = socket.create_server(("127.0.0.1", 18889)); loopback.listen(20)
open("/home/alice/ready", "w").close()
time.sleep(80)'
eventually 5 [ -e ready ]
secrets=(env AWS_SECRET_ACCESS_KEY=secret SSH_AUTH_SOCK=/home/alice/agent http_proxy=http://alice:password@proxy TERM=vt100)
probe() { # OPTIONS...: what the program gets, as words
    ok as alice "${secrets[@]}" skiff run "$@" $image probe 18889 of-the-host 7</etc/passwd
    out=$(xargs <<<"$out")
}
# Where nothing is in its way: what it never finds shows nothing by its silence.
found=
finds() { ok "$@" 7</etc/passwd; found+=" $(xargs <<<"$out") "; }
cp "$root/bin/probe" /home/alice/probe
ok as alice skiff env create free
finds unshare --net --mount --pid --fork --mount-proc /home/alice/probe 18889 of-the-host
finds as alice "${secrets[@]}" /home/alice/probe 18889 of-the-host
finds as alice skiff env exec free -- /home/alice/probe 18889 of-the-host
finds as alice skiff run -v /home/alice/kept:/kept $image probe 18889 of-the-host
rm kept/shell kept/shell2
for word in $(sed -nE 's/^ +got\(.*, "([a-z0-9_-]+)"\);$/\1/p' "$here/probe.c"); do
    case $word in
    vsock | alg | io_uring | userfaultfd | tiocsti) [[ $found == *" $word "* ]] || echo "not told apart: $word, which this kernel gives nobody" ;;
    *) has "$found" " $word " 'what the probe finds where nothing is in its way' ;;
    esac
done
ways=(helper rootless)
# A variable of her profile opens nothing of what she closes.
ok as alice env SKIFF_BIND=/home/alice/.ssh:/x skiff run --untrusted $image ls /
lacks " $(xargs <<<"$out") " ' x '
has "$err" 'SKIFF_BIND is not heard with --untrusted'
ok as alice env SKIFF_BIND=/home/alice/.ssh:/x skiff run --containall $image ls /x
equal "$out" id_test
none='CapInh: 0000000000000000 CapPrm: 0000000000000000 CapEff: 0000000000000000 CapAmb: 0000000000000000 NoNewPrivs: 1 Seccomp_filters: 2 still'
way() { [ "$1" = helper ] && unset SKIFF_HELPER || export SKIFF_HELPER=none; }
lacks_all() { # WORDS...: none of these is among what it got
    local word
    for word; do lacks " $out " " $word " "$way"; done
}
has_all() { local word; for word; do has " $out " " $word " "$way"; done; }
for way in "${ways[@]}"; do
    way $way
    # ---- By default it is the user's own program: it has their variables, home and network.
    probe
    has_all variable agent-name process-variables key home agent site-mount loopback abstract descriptor
    lacks_all process tiocsti

    # ---- Contained: nothing of the host's but what a program needs; the network and variables are shared still.
    probe --contain
    has_all variable loopback
    lacks_all key home agent site-mount proxy srun device sys process tiocsti descriptor
    probe --contain --root
    lacks_all descriptor
    ok as alice skiff run --contain $image sh -ec 'touch ~/x /tmp/x /dev/shm/x; ls -A ~; ls /dev | xargs echo; echo x >/dev/null; dd if=/dev/urandom bs=1 count=1 2>/dev/null | wc -c; sh -c ": <&0" </dev/stdin
        ls -l /dev/fd | grep -c /proc/self/fd' </dev/null
    equal "$out" $'x\nfd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero\n1\n1' "$way"
    [ ! -e x ] || fail 'the home is shared'
    # What is asked for is there all the same.
    ok as alice skiff run --contain -v /home/alice/.ssh:/keys:ro $image sh -c 'cat /keys/id_test; touch /keys/x 2>/dev/null || echo read-only'
    equal "$out" $'private\nread-only' "$way"
    # Over the host's root, too.
    ok as alice skiff run --contain -- sh -c 'ls -A ~; ls /dev/fuse /shared/of-the-site 2>/dev/null; ls /run | xargs'
    equal "$out" $'skiff' "$way"

    # ---- A clean environment: what the image and --env say, what every program needs, and what Apptainer lets through.
    ok as alice "${secrets[@]}" skiff run --cleanenv -e A=1 -e SSH_AUTH_SOCK $image env
    equal "$(sort <<<"$out" | grep -v '^\(USER\|LOGNAME\|PMIX_MCA_psec\|OMPI_ALLOW_RUN_AS_ROOT[A-Z_]*\|SKIFF_IMAGE\|PWD\|SHLVL\|PATH\)=')" \
        $'A=1\nFROM_IMAGE=yes\nHOME=/home/alice\nSSH_AUTH_SOCK=/home/alice/agent\nTERM=vt100\nhttp_proxy=http://alice:password@proxy' "$way"
    probe -C
    lacks_all variable agent-name process-variables key
    ok as alice "${secrets[@]}" skiff run --cleanenv -- env
    lacks "$out" secret "$way"

    # ---- Without the home, the image's own stays, or there is none.
    ok as alice skiff run --no-home $image cat /home/alice/whose
    equal "$out" 'of the image' "$way"
    ok as alice skiff run --no-home -- sh -c 'ls /home; [ -e ~ ] || echo none'
    equal "$out" none "$way"

    # ---- Nobody trusts it.
    for options in --untrusted '--untrusted --root'; do
        probe $options -v /home/alice/kept:/kept
        equal "$out" '' "$way $options"
    done
    ok as alice "${secrets[@]}" skiff run --untrusted $image env
    lacks "$out" password "$way"
    lacks "$out" secret "$way"
    for options in --untrusted '--untrusted --root'; do
        ok as alice skiff run $options $image sh -c 'grep -E "^(Cap(Prm|Eff|Inh|Amb)|NoNewPrivs|Seccomp_filters)" /proc/self/status; ls -A ~; (echo still; sleep 0.1) & wait'
        equal "$(xargs <<<"$out")" "$none" "$way $options"
    done
    # What the user says counts: a directory, a variable, a network.
    ok as alice "${secrets[@]}" skiff run --untrusted -v /home/alice/.ssh:/keys:ro -e AWS_SECRET_ACCESS_KEY $image sh -c 'cat /keys/id_test; echo $AWS_SECRET_ACCESS_KEY'
    equal "$out" $'private\nsecret' "$way"
    probe --untrusted --net host
    has_all loopback
    lacks_all variable key unshare ptrace
done
way helper

# ---- What does not go together, and what it is going to do.
fails 125 as alice skiff run --untrusted -- true
has "$err" 'hint: skiff run --untrusted IMAGE'
fails 125 as alice skiff run --untrusted --checkpoint x $image true
ok as alice skiff run --untrusted --dry-run $image
has "$out" 'network      none'
has "$out" 'untrusted    '
lacks "$out" '/home/alice <- /home'
ok as alice sh -c "echo id -un | skiff shell --untrusted $image"
equal "$out" alice
for SKIFF_HELPER in none ''; do
    ok as alice skiff run --untrusted $image sh -c 'id -u; id -un; touch /kept/x 2>/dev/null || echo read-only'
    equal "$out" "$(id -u alice)"$'\nalice\nread-only'
    ok as alice skiff run --untrusted --root $image id -u
    equal "$out" 0
done

# ---- Instances: contained ones have no proxy to the host's commands, nor the home.
ok as alice skiff env create dev
ok as alice skiff instance start --contain env:dev box sleep 60
ok as alice skiff instance exec box sh -c 'ls /run/skiff; ls -A ~'
lacks "$out" host.sock
lacks "$out" .ssh
ok as alice "${secrets[@]}" skiff instance exec --cleanenv box env
lacks "$out" secret
ok as alice skiff instance start --containall $image other sleep 60
ok as alice skiff instance exec other sh -c 'ls -A ~; ls /shared 2>/dev/null || echo none'
equal "$out" none
