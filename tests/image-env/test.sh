# takes: 17
# Environments that stay, over an image: made of what its name meant then, changed, compared, entered, used by jobs.
. "$(dirname "$0")/../lib.sh"
# Where the nodes reach it too.
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
image=$registry/tools/env:1
skeleton "$root"
echo one >"$root/etc/version"
# As its maker chose: later than any change that is made here.
touch -d 2100-01-01 "$root/etc/version"
printf '#!/bin/sh\necho tool of the image\n' >"$root/usr/bin/tool" && chmod 755 "$root/usr/bin/tool"
mkdir "$root/opt" && mv "$root/usr/bin/tool" "$root/opt/tool"
start_registry
make_store
trap 'rm -rf /home/store; images_cleanup' EXIT
push tools/env:1 "$root" --config '{"Entrypoint":["/bin/false"],"Env":["PATH=/opt:/usr/bin:/bin","FROM_IMAGE=yes"],"WorkingDir":"/etc"}'
digest=${pushed#sha256:}

fails 125 as alice skiff env create dev --base image:$image
has "$err" 'not in your image list'
has "$err" 'hint: `skiff images` lists yours; `skiff pull'
ok as alice skiff pull --quiet $image
ok as alice skiff env create --dry-run dev --base image:$image
has "$out" "$digest"
ok as alice skiff env create dev --base image:$image
ok as alice skiff env list --json
equal "$(json "$out" 'd[0]["base"]')" "image:$image"
has "$(cat /home/alice/.local/share/skiff/env/dev/env.toml)" "image = \"$digest\""
ok as alice skiff env enter --dry-run dev
has "$out" "base         image $digest"

# What runs in it has the image's variables and not its entry point; changes stay; as root by default.
ok as alice env PYTHONPATH=/x skiff env exec dev -- sh -c 'tool; echo "$FROM_IMAGE [$PYTHONPATH]"; id -u; pwd'
equal "$out" $'tool of the image\nyes []\n0\n/home/alice'
# Skiff inside is Skiff outside, also where an image has none.
ok as alice skiff env exec dev -- sh -c 'skiff env list --json; skiff env diff'
has "$out" "image:$image"
lacks "$out" bin/skiff
ok as alice skiff env exec --me dev -- whoami
equal "$out" alice
ok as alice sh -c 'echo "cat /etc/version; tool" | skiff env enter dev'
equal "$out" $'one\ntool of the image'
inside alice dev 'echo changed >/etc/version; echo new >/opt/new; rm /bin/find; chown 5:5 /opt/new'
ok as alice skiff env stop dev
ok as alice skiff env exec dev -- sh -c 'cat /etc/version /opt/new; stat -c %u /opt/new; ls /bin/find 2>&1 | grep -c "No such"'
equal "$out" $'changed\nnew\n5\n1'
ok as alice skiff env diff dev
lacks "$out" 'has changed it' 'an image does not change'
for line in 'C /etc/version' 'A /opt/new' 'D /bin/find'; do has $'\n'"$out"$'\n' $'\n'"$line"$'\n'; done
lacks "$out" /bin/busybox
# What only mounts needed is nobody's change.
for place in /run/skiff /etc/hosts /etc/resolv.conf "/home/alice"; do lacks "$out" "$place"; done

# The name comes to mean another image: this environment stays over the one that it was made over.
echo two >"$root/etc/version"
push tools/env:1 "$root"
ok as alice skiff pull --quiet $image
ok as alice skiff run $image cat /etc/version
equal "$out" two
ok as alice skiff env create other --base image:$image
ok as alice skiff env exec other -- cat /etc/version
equal "$out" two
inside alice dev 'rm /etc/version'
ok as alice skiff env exec dev -- tool
ok as alice skiff env stop other
ok as alice skiff rmi $image
has "$err" 'environment other is over it'
ok as alice skiff env exec other -- cat /etc/version
equal "$out" two
ok as alice skiff env rm --force other
ok as alice skiff env exec dev -- tool
fails 125 as alice skiff env exec other -- true

# Jobs: a node gets the very image that the environment was made over, whatever its name means by now.
cd /home/alice
fails 125 as alice srun -Qw n1 --environment=dev true
has "$err" 'node n1'
has "$err" make-store
for node in n1 n2; do on $node install -d -m 755 /var/lib/skiff; on $node install -d -m 755 -o daemon -g daemon $store; done
ok as alice srun -QN2 --environment=dev sh -c 'tool; cat /opt/new; echo $FROM_IMAGE; id -un; [ ! -e /etc/version ]'
equal "$(sort <<<"$out" | uniq -c | xargs)" '2 alice 2 new 2 tool of the image 2 yes'
# The host's commands run on the host, and what they start in the job's environment with what was set there.
cat >job <<'X'
#!/bin/sh
cd /opt
export PYTHONPATH=/mine LD_LIBRARY_PATH=/no/such
srun sh -c "tool; pwd; echo \$PYTHONPATH \$LD_LIBRARY_PATH \$FROM_IMAGE"
X
ok as alice sbatch --parsable -N1 -o out --environment=dev job
try ended "$out"
equal "$out" 'COMPLETED 0:0' "$(cat out)"
equal "$(cat out)" $'tool of the image\n/opt\n/mine /no/such yes'
ok as alice skiff env exec dev -- sh -c 'cd /opt && FROM_IMAGE=changed srun -Qw n2 sh -c "tool; pwd; hostname; echo \$FROM_IMAGE"'
equal "$out" $'tool of the image\n/opt\nn2\nchanged'
# A neighbour's script in the host's /tmp is not the environment's, whatever it is called; and the neighbour's directory is no place for output.
echo precious >precious
chown alice: precious
ok as mallory sh -c 'umask 022; mkdir /tmp/build; for f in /tmp/job.sh /tmp/build/job.sh; do printf "#!/bin/sh\necho by mallory\n" >$f; done'
for dir in /tmp /tmp/build /opt; do
    try as alice skiff env exec dev -- sh -c "mkdir -p $dir; cd $dir; sbatch -o /home/alice/stolen job.sh"
    [ "$code" != 0 ] || fail "$dir/job.sh was submitted: $out"
    has "$err" 'Unable to open file job.sh' "$dir"
done
try as alice skiff env exec dev -- sbatch -o /home/alice/stolen /tmp/job.sh
has "$err" "/tmp/job.sh: on the host this is another user's file"
idle
[ ! -e stolen ] || fail "a neighbour's script ran: $(cat stolen)"
# One's own goes on: the output into the home, the job itself in the directory that only its environment has.
ok as alice skiff env exec dev -- sh -c 'cd /opt; printf "#!/bin/sh\npwd\n" | sbatch --parsable'
job=$(tail -1 <<<"$out")
try ended $job
equal "$out" 'COMPLETED 0:0'
equal "$(cat slurm-$job.out)" /opt
# What is listed is called with the site's configuration, and loads nothing of the caller's.
printf 'ClusterName=evil\nPluginDir=/home/alice\nSlurmctldHost=nowhere\n' >evil.conf
ok as alice skiff env exec dev -- env SLURM_CONF=/home/alice/evil.conf GCONV_PATH=/home/alice BASH_ENV=/home/alice/evil.conf squeue -h
ok as alice skiff env exec dev -- env BASH_ENV=/mine PYTHONPATH=/mine SLURM_CONF=/home/alice/evil.conf srun -Qw n2 sh -c 'echo $BASH_ENV $PYTHONPATH $SLURM_CONF'
has "$out" '/mine /mine '
lacks "$out" evil.conf
idle

# Two nodes that share one store do the work once.
head -c 20000000 /dev/urandom >"$root/random"
push tools/shared:1 "$root" --config '{"Cmd":["sha256sum","/random"]}'
shared=$registry/tools/shared:1
install -d -o daemon -g daemon /home/store
for node in n1 n2; do on $node sh -c 'mkdir -p /etc/skiff && echo "store = /home/store" >/etc/skiff/helper.conf'; done
: >"$registry_log"
ok as alice srun -QN2 skiff pull --quiet $shared
[ "$(served tools/shared)" -lt 30000000 ] || fail "$(served tools/shared) bytes were sent for a layer of 20000000"
equal "$(ls /home/store/images | grep -c '\.erofs$')" 1
ok as alice srun -QN2 skiff run --pull never $shared
equal "$(uniq -c <<<"$out" | xargs)" "2 $(sha256sum <"$root/random" | cut -d' ' -f1) /random"
ok as alice srun -QN2 skiff store verify
for node in n1 n2; do on $node sh -c 'umount -l /run/skiff/images/*; rm -rf /run/skiff/images/* /etc/skiff/helper.conf'; done
rm -rf /home/store
# The user's names are the same everywhere; here the image is not.
fails 125 as alice skiff run --pull never $shared
ok as alice skiff run $shared
has "$err" 'this host does not have it'
ok as alice skiff rmi $shared

# A node that can neither find nor get it says so.
stop_registry
on n1 sh -c 'umount -l /run/skiff/images/*; rm -rf /run/skiff/images/*'
on n1 find $store -mindepth 1 -delete
fails 125 as alice srun -Qw n1 --environment=dev true
has "$err" "node n1: "
has "$err" "$registry"
has "$err" 'hint: '
idle
for node in n1 n2; do on $node sh -c 'umount -l /run/skiff/images/*; rm -rf /run/skiff/images /var/lib/skiff/store'; done
