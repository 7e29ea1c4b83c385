# --hostname and --ulimit: for who is root inside, oneself and untrusted, with the helper (alice) and without (bob), in the background and by
# a plan; and that neither changes anything of the host.
# takes: 15
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
make_store
skeleton "$root"
for command in hostname grep ping; do ln -sf busybox "$root/bin/$command"; done
push tools/plain:1 "$root" --config '{"Cmd":["sh"],"Env":["PATH=/bin"]}'
image=$registry/tools/plain:1
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null
machine=$(hostname)

for user in alice bob; do
    ok as $user skiff pull --quiet $image
    for way in '' --root --untrusted '--contain --root' '--net none'; do
        ok as $user skiff run $way --hostname node-1.example --ulimit nofile=100:200 --ulimit core=0 $image sh -c 'hostname; grep -c node-1.example /etc/hosts; ulimit -n; ulimit -Hn; ulimit -c'
        equal "$out" $'node-1.example\n1\n100\n200\n0' "$user $way"
    done
    # The host's name is what it was, in the host's list and for others.
    ok as $user skiff run --root --hostname n1 $image sh -c 'hostname other 2>/dev/null; hostname; grep -c " n1$" /etc/hosts'
    equal "$(tail -1 <<<"$out")" 1 "$user: its list of hosts"
    equal "$(hostname)" "$machine" "$user: the host's name"
    ok as $user skiff run $image hostname
    equal "$out" "$machine" "$user: without the option"
    # Over the host's root the list of hosts is what programs look names up in.
    ok as $user skiff run --hostname n1 --ulimit nofile=64 -- sh -c 'hostname; getent hosts n1; ulimit -n; ulimit -Hn'
    equal "$(tr -s ' \n' ' ' <<<"$out")" 'n1 127.0.1.1 n1 64 64 ' "$user: over the host"
    ok as $user skiff run -- getent hosts "$machine"
    address=$out
    ok as $user skiff run --hostname n1 -- getent hosts "$machine"
    equal "$out" "$address" "$user: the host's own name"

    # In the background; who enters sees the same name, and has limits of their own.
    ok as $user skiff run -d --name web --hostname web.example --ulimit nofile=77 $image sh -c 'hostname; ulimit -n; exec sleep 1000'
    wrote() { [ "$(as $user skiff logs web)" = $'web.example\n77' ]; }
    eventually 5 wrote
    ok as $user skiff exec web hostname
    equal "$out" web.example "$user: exec"
    ok as $user skiff exec --root web hostname
    equal "$out" web.example "$user: exec --root"
    ok as $user skiff exec --root web sh -c 'hostname changed; hostname; ulimit -n'
    lacks "$out" 77 "$user: limits of a session"
    equal "$(hostname)" "$machine"
    ok as $user skiff stop -t 1 web
    ok as $user skiff env create --base image:$image dev
    ok as $user skiff instance start --hostname deep --ulimit nofile=55 env:dev of-env sh -c 'hostname; ulimit -n'
    of_env() { [ "$(as $user skiff logs of-env)" = $'deep\n55' ]; }
    eventually 10 of_env

    # A plan says both, and does what it says.
    as $user sh -c "skiff run --hostname n2 --ulimit nofile=10:20 --dry-run --json $image sh -c 'hostname; ulimit -n' >plan"
    equal "$(json "$(cat /home/$user/plan)" 'd["hostname"], d["process"]["ulimits"]')" "('n2', ['nofile=10:20'])" "$user: plan"
    ok as $user skiff run --plan plan
    equal "$out" $'n2\n10' "$user: --plan"
    ok as $user skiff run --hostname n2 --dry-run $image
    has "$out" 'host name    n2'
    as $user sh -c "sed 's/\"n2\"/\"n2 evil\"/' plan >bad; sed 's/nofile=10:20/nofile=20:10/' plan >worse"
    for plan in bad worse; do
        fails 125 as $user skiff run --plan $plan
        has "$err" 'hint: '
    done
done
# Without the options a plan has neither.
ok as alice skiff run --dry-run --json $image
lacks "$out" hostname
lacks "$out" ulimits

# What is no name or limit, and what is above the user's own.
for name in '' -a a_b 'a b' localhost "$(printf 'x%.0s' $(seq 65))"; do
    fails 125 as alice skiff run --hostname="$name" $image true
    has "$err" hostname "$name"
done
for asked in nofile nofile=x as=1 nofile=2:1; do
    fails 125 as alice skiff run --ulimit $asked $image true
    has "$err" ulimit "$asked"
done
fails 125 as alice sh -c "ulimit -n 500; exec skiff run --ulimit nofile=600 $image true"
has "$err" '--ulimit nofile: 600 is above your hard limit, 500'
has "$err" 'hint: '
fails 125 as alice sh -c "ulimit -n 500; exec skiff run --ulimit nofile=-1 $image true"
# The last of a kind counts, and a limit that the program cannot live with is its own affair.
ok as alice skiff run --ulimit nofile=600 --ulimit nofile=30 $image sh -c 'ulimit -n'
equal "$out" 30
fails 153 as alice skiff run --ulimit fsize=1000 $image sh -c 'head -c 5000 /dev/zero >/tmp/f; dd if=/dev/zero of=/tmp/g bs=5000 count=1'

# It stays when the instance is saved and made again.
if [ -e /usr/libexec/skiff/criu/criu ]; then
    ok as alice skiff instance start --checkpoint --hostname moved image:$image sim sh -c 'while :; do hostname; sleep 0.2; done'
    said_it() { as alice skiff logs sim | grep -q moved; }
    eventually 5 said_it
    ok as alice skiff checkpoint save sim
    ok as alice skiff checkpoint restore sim
    ok as alice skiff exec sim hostname
    equal "$out" moved 'after a restore'
    ok as alice skiff rm -f sim
fi
