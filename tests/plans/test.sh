# time: 90
# takes: 10
# What `--dry-run` prints is what is carried out: the plan that an instance's record keeps is the one printed before, to the letter. And
# printing one starts no helper, pulls nothing and leaves nothing behind.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
helper=/usr/libexec/skiff/skiff-helper
restore() { [ ! -e helper.kept ] || mv -f helper.kept $helper; }
trap 'restore; images_cleanup' EXIT
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
has "$err" 'you have not pulled it'
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
