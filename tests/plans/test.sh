# time: 90
# takes: 10
# What `--dry-run` prints is what is carried out: the plan that an instance's record keeps is the one printed before, to the letter. And
# printing one starts no helper, pulls nothing and leaves nothing behind.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
helper=/usr/libexec/skiff/skiff-helper
restore() { [ ! -e helper.kept ] || mv -f helper.kept $helper; }
mode=$(stat -c %a /dev/net/tun)
trap 'restore; chmod "$mode" /dev/net/tun; images_cleanup' EXIT
# As on an ordinary system.
chmod 666 /dev/net/tun
root=$images_tmp/root
start_registry
make_store
skeleton "$root"
push tools/plan:1 "$root" --config '{"Cmd":["/bin/busybox","true"],"Volumes":{"/var/db":{}}}'
image=$registry/tools/plan:1
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null

for user in alice bob; do
    ok as $user skiff pull --quiet $image
    ok as $user skiff env create dev -v /shared:/in:ro
done

# As much is there afterwards as before, at the same times; and nobody has started the helper.
left() { find /home/alice /home/bob /run/skiff /var/lib/skiff /tmp /run/user -mindepth 1 -xdev -not -path "$images_tmp*" -printf '%p %C@ %s\n' 2>&- | sort; }
shown=(
    'run --dry-run --json -v /shared -- true'
    'run --dry-run --net none --contain -- true'
    "run --dry-run --json --pull always $image"
    "run --dry-run --untrusted $image"
    "run --dry-run --json --checkpoint calc -- true"
    'env enter --dry-run --json dev'
    'env create --dry-run new'
    'instance start --dry-run --json host web true'
    'instance start --dry-run --json env:dev web true'
    "instance start --dry-run --json --net private $image web"
    'cluster up two --slurm --nodes 2 --here --dry-run --json'
)
cp -a $helper helper.kept
printf '#!/bin/sh\necho "$PPID" >>%s/helped\nexec %s/helper.kept "$@"\n' "$images_tmp" "$PWD" >$helper
touch "$images_tmp/helped" && chmod 666 "$images_tmp/helped" && chmod 4755 $helper
before=$(left)
for words in "${shown[@]}"; do
    for user in alice bob; do
        ok as $user skiff $words
        equal "$(cat "$images_tmp/helped")" '' "$words starts the helper"
    done
done
ok as alice skiff run --dry-run --json --net lab -- true
has "$(json "$out" '[m["source"] for m in d["mounts"] if m["target"] == "/etc/hosts"]')" "{'hosts': []}"
after=$(left)
[ "$after" = "$before" ] || fail "dry runs leave: $(diff <(echo "$before") <(echo "$after"))"
fails 125 as alice skiff run --dry-run $registry/tools/never:1
has "$err" 'not in your image list'
equal "$(cat "$images_tmp/helped")" '' 'an image that is not here'
restore

# The same words without --dry-run: the record has the very plan.
kept() { # USER WORDS...
    local user=$1 plan
    shift
    # Of an environment, the layers are those of a snapshot that is taken at the start.
    local shape='json.dumps({**PLAN, **({"layers": []} if "'"$1"'" == "env:dev" else {})}, sort_keys=True)'
    ok as "$user" skiff instance start --dry-run --json "$@"
    plan=$(json "$out" "${shape/PLAN/d}")
    ok as "$user" skiff instance start "$@"
    equal "$(json "$(cat "/home/$user/.local/share/skiff/instance/web/instance.json")" "${shape/PLAN/d[\"plan\"]}")" "$plan" "$user: $*"
    ok as "$user" skiff instance rm --force web
}
for user in alice bob; do
    kept $user -v /shared:/x:ro host web sleep 100
    kept $user --net none --contain host web sleep 100
    kept $user --checkpoint --net none host web sleep 100
    kept $user env:dev web sleep 100
    kept $user --writable --no-home $image web /bin/busybox sleep 100
done

# A printed plan is carried out to the letter: inside, all is as it is by the words; and printed again it is the same bytes.
looks='id; pwd; env | sort; cut -d" " -f 4-6 /proc/self/mountinfo | sort; ls /sys/class/net'
kinds=(
    "-- sh -c"
    "--me -- sh -c"
    "-v /shared -v /etc/passwd:/in:ro -e A=1 -w /shared -- sh -c"
    "--net private --contain -- sh -c"
    "$image /bin/busybox sh -c"
    "--untrusted --writable -v /shared $image /bin/busybox sh -c"
)
plan_of() { # USER WORDS...
    ok as "$@" >/dev/null
    printf '%s\n' "$out" >/shared/plan.json
}
for user in alice bob; do
    for words in "${kinds[@]}"; do
        [ "$user $words" != "bob ${kinds[1]}" ] || continue # without the helper nobody runs as themselves
        plan_of $user skiff run --dry-run --json $words "$looks"
        ok as $user skiff run $words "$looks"
        was=$out
        ok as $user skiff run --plan /shared/plan.json
        equal "$out" "$was" "$user: $words"
        ok as $user skiff run --plan - </shared/plan.json
        equal "$out" "$was" "$user, standard input: $words"
        ok as $user skiff run --plan /shared/plan.json --dry-run --json
        equal "$out" "$(cat /shared/plan.json)" "$user, printed again: $words"
    done
done
ok as alice env PASS=hunter2 skiff run --dry-run --json -e SAID=this -- true
lacks "$out" hunter2
has "$out" '"SAID=this"'
fails 125 as alice skiff run --plan /shared/plan.json true
fails 125 as alice skiff run --plan /shared/plan.json --me

# What mallory has changed, what was made for somebody else, and what is not there any more is refused, with a hint.
refused() { # USER WHAT PYTHON
    as mallory /usr/bin/python3 -c "import json; d = json.load(open('/shared/plan.json')); $3; json.dump(d, open('/shared/other.json', 'w'))"
    fails 125 as $1 skiff run --plan /shared/other.json
    has "$err" "$2"
    has "$err" 'hint: '
}
install -d -o alice /shared/gone
plan_of alice skiff run --dry-run --json -v /shared/gone -- sh -c 'echo ran'
refused alice 'of Skiff' 'd["version"] = "0.0.0"'
refused bob 'made for user' 'pass'
refused alice 'made for user' 'd["uid"] = 0'
refused alice 'not known' 'd["privileged"] = True'
refused alice 'mount /etc/passwd' 'd["mounts"].append({**d["mounts"][0], "source": {"text": "root::0:0::/:/bin/sh"}, "target": "/etc/passwd"})'
refused alice 'mount /x' 'd["mounts"].append({**d["mounts"][0], "source": {"own": "../../.ssh"}, "target": "/x"})'
refused alice 'mount /run/skiff' 'd["mounts"].append({**d["mounts"][0], "source": {"bind": "/shared"}, "target": "/run/skiff/skiff"})'
refused alice 'layers' 'd["layers"] = ["/home/bob"]'
refused alice 'upper' 'd["upper"] = {"directory": "/home/alice"}'
refused alice 'a directory' 'd["base"], d["unpacked"] = "directory", "/shared"'
refused alice 'you have not pulled it' 'd["base"] = {"image": "5" * 64}'
refused alice 'shims' 'd["shims"] = ["/bin/sh"]'
refused alice 'working directory' 'd["process"]["cwd"] = "home"'
refused alice 'zero byte' 'd["process"]["argv"][0] = "a\0b"'
refused alice 'written as numbers' 'd["process"]["argv"] = [[114, 109]]'
refused alice 'control character' 'd["mounts"].append({**d["mounts"][0], "source": {"bind": "/shared"}, "target": "/x\x1b[1A"})'
as mallory /usr/bin/python3 -c 'text = open("/shared/plan.json").read()
open("/shared/other.json", "w").write(text.replace("\"argv\":", "\"argv\": [\"rm\"], \"argv\":", 1))'
fails 125 as alice skiff run --plan /shared/other.json
has "$err" 'duplicate field'
# Who looks at a plan sees what it runs.
ok as alice skiff run --plan /shared/plan.json --dry-run
has "$out" 'command      "sh" "-c" "echo ran"'
rmdir /shared/gone
fails 125 as alice skiff run --plan /shared/plan.json
has "$err" '/shared/gone: there is no such file or directory'
plan_of alice skiff run --dry-run --json --untrusted $image
refused alice 'who it is to be' 'd["process"]["identity"] = "me"'
refused alice 'who it is to be' 'd["process"]["seen_as"] = [0, 0]'
plan_of alice skiff instance start --dry-run --json host web true
fails 125 as alice skiff run --plan /shared/plan.json
has "$err" 'not one of `skiff run`'
plan_of alice skiff run --dry-run --json $image
ok as alice skiff rmi $image
refused alice 'you have not pulled it' 'pass'

# On a network of the site's runs what was planned before that was joined: from there no registry answers, and none is asked.
mkdir -p /etc/skiff/networks.d
trap 'restore; chmod "$mode" /dev/net/tun; rm -rf /etc/skiff/networks.d; images_cleanup' EXIT
printf 'kind = "bridge"\nsubnet = "10.21.0.0/24"\nrange = "10.21.0.16/29"\n' >/etc/skiff/networks.d/lab.toml
ok as alice skiff run --pull always --net lab $image busybox echo -n "$(printf 'two\nlines')"
equal "$out" $'two\nlines'
ok as alice skiff run --pull always --net lab --me -e "GREETING=$(printf 'a\tb')" $image busybox sh -c 'echo "$GREETING"; id -u'
equal "$out" "$(printf 'a\tb\n%s' "$(id -u alice)")"
ok as alice skiff instance start --pull always --net lab $image web busybox sh -c 'echo here; sleep 100'
eventually 10 as alice sh -c 'skiff instance logs web | grep -q here'
ok as alice skiff instance rm --force web
ok as alice skiff instance start --net lab env:dev web sh -c 'cat /in/plan.json >/dev/null && echo there; sleep 100'
eventually 10 as alice sh -c 'skiff instance logs web | grep -q there'
ok as alice skiff instance rm --force web
