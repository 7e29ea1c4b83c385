# takes: 25
# Environment definition files: by skiff run, by Slurm's commands, shown and checked.
. "$(dirname "$0")/../lib.sh"
# Where the nodes reach it too.
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
trap 'rm -rf /srv/edf /srv/data /etc/cdi/thing.yaml /etc/skiff/modules.d; images_cleanup' EXIT
root=$images_tmp/root
skeleton "$root"
for command in hostname sort env pwd touch; do ln -sf busybox "$root/bin/$command"; done
mkdir "$root/opt" "$root/data"
printf '#!/bin/sh\necho tool of the image\n' >"$root/opt/tool" && chmod 755 "$root/opt/tool"
printf '#!/bin/sh\nexport ENTERED=yes\nexec "$@"\n' >"$root/opt/entry" && chmod 755 "$root/opt/entry"
start_registry
make_store
node_stores
push tools/env:1 "$root" --config '{"Entrypoint":["/opt/entry"],"Env":["PATH=/opt:/usr/bin:/bin","OF=image"],"WorkingDir":"/"}'
cd /home/alice
mkdir -p /srv/data && echo shared >/srv/data/file
as alice mkdir -p .edf
as alice sh -c 'cat >.edf/base.toml' <<X
image = "10.77.0.1:5000#tools/env:1"
mounts = ["/srv/data:/data"]
[env]
FROM_BASE = "yes"
OF = "base"
X
as alice sh -c 'cat >.edf/job.toml' <<'X'
base_environment = "base"
mounts = ["/srv/data:/mine/${USER}:ro"]
workdir = "/data"
[env]
OF = "definition over ${OF}"
PATH = "/added:${PATH}"
GONE = ""
X
show='echo "$OF|$FROM_BASE|${GONE-unset}|$ENTERED|$PATH"; pwd; cat file /mine/alice/file'
want=$'definition over image|yes|unset|yes|/added:/opt:/usr/bin:/bin\n/data\nshared\nshared'

# The same by a file and by a name, here and in jobs.
ok as alice env GONE=x skiff run .edf/job.toml sh -c "$show"
equal "$out" "$want"
for definition in job ./.edf/job.toml /home/alice/.edf/job.toml; do
    ok as alice env GONE=x srun -Q --environment=$definition sh -c "$show"
    equal "$out" "$want" "$definition"
done
# Without the helper as well; there one is root inside.
ok as alice env GONE=x SKIFF_HELPER=none skiff run .edf/job.toml sh -c "$show"
equal "$out" "$want" 'without the helper'
ok as alice srun -Q -N2 --environment=job hostname
equal "$(sort <<<"$out")" $'n1\nn2'
# A step in the job's own container goes on with what the script has set.
printf '#!/bin/sh\ntool; export OF=script; srun -Q sh -c "echo \\$FROM_BASE \\$OF \\$PATH"\n' >batch && chmod 755 batch
ok as alice sbatch -Q --wait --output=batch.out --environment=job ./batch
equal "$(cat batch.out)" $'tool of the image\nyes script /added:/opt:/usr/bin:/bin'

# A mount that begins with ./ counts from where the user is.
as alice sh -c 'mkdir near && echo near >near/file && printf "base_environment = \"base\"\nmounts = [\"./near:/near\"]\n" >.edf/near.toml'
ok as alice skiff run .edf/near.toml cat /near/file
equal "$out" near
ok as alice srun -Q --environment=near cat /near/file
equal "$out" near
rm -r near .edf/near.toml

# What is said beside it is stronger; files that a site has, by EDF_PATH.
ok as alice skiff run -w / -e OF=mine -v /srv/data:/mine/alice .edf/job.toml sh -c 'echo $OF; pwd; touch /mine/alice/x 2>&1 | grep -c denied'
equal "$out" $'mine\n/\n1'
ok as alice srun -Q --environment=job --container-workdir=/opt --no-container-entrypoint sh -c 'pwd; echo [$ENTERED]'
equal "$out" $'/opt\n[]'
fails 1 as alice skiff run --read-only .edf/base.toml touch /new
has "$err" 'Read-only file system'
fails 125 as alice skiff run --untrusted .edf/job.toml true
has "$err" 'with --untrusted its mounts, devices and variables are not taken'
mkdir -p /srv/edf && printf 'base_environment = "/home/alice/.edf/base.toml"\nwritable = false\nentrypoint = false\n' >/srv/edf/site.toml
fails 1 as alice env EDF_PATH=/srv/edf srun -Q --environment=site touch /new
has "$err" 'Read-only file system'
ok as alice env EDF_PATH=/srv/edf skiff edf list
equal "$(xargs <<<"$out")" 'NAME IMAGE FILE site 10.77.0.1:5000#tools/env:1 /srv/edf/site.toml'

# An environment of the user's that is called so comes first.
ok as alice skiff env create job
ok as alice srun -Q --environment=job sh -c 'echo [$FROM_BASE]'
equal "$out" '[]'
equal "$err" 'skiff: environment job is used, and not the definition /home/alice/.edf/job.toml'
ok as alice skiff env rm -f job
# So does an image for `skiff run`, which takes no names of definitions.
ok as alice skiff tag 10.77.0.1:5000/tools/env:1 base
ok as alice skiff run base tool
equal "$out" 'tool of the image'
equal "$err" 'skiff: image base is used, and not the definition /home/alice/.edf/base.toml'
ok as alice skiff run ./.edf/base.toml tool
equal "$err" ''
ok as alice skiff rmi base

# Data in a squashfs: in a definition and by -v, with the helper and without, in jobs and instances. The kernel sees none of the file itself.
mkdir data && echo first >data/file && mksquashfs data data.sqsh -quiet -no-progress >/dev/null && chown alice data.sqsh
as alice sh -c 'printf "base_environment = \"base\"\nmounts = [\"$HOME/data.sqsh:/squashed:sqsh\"]\n[env]\nOF = \"squashed\"\n" >squashed.toml'
look='cat /squashed/file; touch /squashed/x 2>&1 | grep -c Read-only'
for route in A=1 SKIFF_HELPER=none; do
    ok as alice env $route skiff run squashed.toml sh -c "$look"
    equal "$out" $'first\n1' "$route"
    ok as alice env $route skiff run -v ./data.sqsh:/squashed:sqsh 10.77.0.1:5000/tools/env:1 sh -c "$look"
    equal "$out" $'first\n1' "$route"
done
ok as alice srun -Q -N2 --environment=./squashed.toml cat /squashed/file
equal "$out" $'first\nfirst'
ok as alice srun -Q --container-image=10.77.0.1:5000#tools/env:1 --container-mounts=./data.sqsh:/squashed:sqsh cat /squashed/file
equal "$out" first
ok as alice skiff instance start squashed.toml squashed sleep 100
ok as alice skiff exec squashed sh -c 'cat /squashed/file; echo $OF $FROM_BASE'
equal "$out" $'first\nsquashed yes'
ok as alice skiff stop squashed
as alice sh -c 'skiff run --dry-run --json squashed.toml cat /squashed/file >plan.json'
ok as alice skiff run --plan plan.json
equal "$out" first
# In the order in which they are said: data in what is mounted before them, and mounts in them.
mkdir below && touch below/here && chown -R alice: below
ok as alice skiff run -v /home/alice/below:/mnt -v ./data.sqsh:/mnt/data:sqsh 10.77.0.1:5000/tools/env:1 sh -c 'ls /mnt; cat /mnt/data/file'
equal "$out" $'data\nhere\nfirst'
ok as alice srun -Q --container-image=10.77.0.1:5000#tools/env:1 --container-mounts=/home/alice/below:/mnt,./data.sqsh:/mnt/data:sqsh cat /mnt/data/file
equal "$out" first
# What runs keeps what the store has of the file.
ok as alice skiff instance start -v ./data.sqsh:/squashed:sqsh 10.77.0.1:5000/tools/env:1 keeps sleep 100
ok as alice skiff rmi data.sqsh
has "$err" 'instance keeps'
ok as alice skiff exec keeps cat /squashed/file
equal "$out" first
ok as alice skiff stop keeps
rm -r below
echo second >data/file && mksquashfs data data.sqsh -quiet -no-progress -noappend >/dev/null
# To look changes nothing.
ok as alice skiff images --json
known=$out
fails 125 as alice skiff run --dry-run squashed.toml true
has "$err" 'the store has not read it yet'
ok as alice skiff images --json
equal "$out" "$known" 'a dry run'
ok as alice skiff run squashed.toml cat /squashed/file
equal "$out" second
fails 125 as alice skiff run -v /home/alice/squashed.toml:/x:sqsh 10.77.0.1:5000/tools/env:1 true
has "$err" 'mount of /home/alice/squashed.toml'
ok as alice skiff env create with-data -v /home/alice/data.sqsh:/squashed:sqsh
inside alice with-data 'cat /squashed/file'
equal "$out" second
ok as alice skiff env rm -f with-data
rm -r data data.sqsh squashed.toml plan.json

# The site's modules are what hooks are elsewhere.
mkdir -p /etc/skiff/modules.d
printf 'description = "A network"\nenv = { FI_FABRIC = "fast" }\n' >/etc/skiff/modules.d/fabric.toml
as alice sh -c 'printf "base_environment = \"base\"\nannotations.com.hooks.fabric.enabled = \"true\"\n" >hooked.toml'
ok as alice skiff run hooked.toml sh -c 'echo $FI_FABRIC'
equal "$out" fast
ok as alice srun -Q -N2 --environment=./hooked.toml sh -c 'echo $FI_FABRIC'
equal "$out" $'fast\nfast'
equal "$err" ''
rm -r /etc/skiff/modules.d hooked.toml

# Devices, as their vendor describes them.
mkdir -p /etc/cdi && printf 'cdiVersion: 0.6.0\nkind: skiff.test/thing\ndevices:\n- name: one\n  containerEdits: {env: [GIVEN=device]}\n' >/etc/cdi/thing.yaml
as alice sh -c 'printf "base_environment = \"job\"\ndevices = [\"skiff.test/thing=one\"]\n" >device.toml'
ok as alice skiff run device.toml sh -c 'echo $GIVEN'
equal "$out" device
ok as alice srun -Q --environment=./device.toml sh -c 'echo $GIVEN'
equal "$out" device

# Shown and checked.
ok as alice skiff edf show job
has "$out" '# from /home/alice/.edf/base.toml'
has "$out" '"/srv/data:/mine/alice:ro"'
has "$out" 'PATH = "/added:${PATH}"'
as alice sh -c 'printf "image = \"x\"\nmounts = [\"/srv/data:/data:ro,slave\"]\n" >flags.toml'
ok as alice skiff edf show ./flags.toml
has "$out" '"/srv/data:/data:ro,rslave"'
rm flags.toml
ok as alice skiff edf show --json job
equal "$(json "$out" 'd["workdir"]')" /data
ok as alice skiff edf check
equal "$out" $'base: sound\njob: sound\njob: note: env.OF: the variable OF is not set; the image may set it'
# One that others build upon needs no image where all are checked.
as alice sh -c 'echo writable = true >.edf/above.toml'
ok as alice skiff edf check
has "$out" 'above: note: it names no image; others may build upon it'
fails 1 as alice skiff edf check above
equal "$(head -n1 <<<"$out" | cut -d'(' -f1)" 'definition above: it names no image '
rm .edf/above.toml
as alice sh -c 'skiff edf new 10.77.0.1:5000/tools/env:1 >new.toml'
ok as alice skiff edf check ./new.toml
ok as alice skiff run new.toml tool
equal "$out" 'tool of the image'

# What is wrong is said at once, with its line.
refused() { # TEXT MESSAGE
    printf "$1" >wrong.toml && chown alice wrong.toml
    fails 1 as alice skiff edf check ./wrong.toml
    has "$out" "$2" 'checked'
    fails 125 as alice skiff run wrong.toml true
    has "$err" "$2" 'run'
    fails 125 as alice srun -Q --environment=./wrong.toml true
    has "$err" "$2" 'submitted'
}
refused 'imag = "x"\n' 'wrong.toml:1: there is no key "imag"'
refused '\nimage = "${NOT_SET}"\n' 'wrong.toml:2: the variable NOT_SET is not set'
refused 'base_environment = "base"\nimage = ""\n' 'wrong.toml:2: image is empty'
refused 'base_environment = "wrong.toml"\n' 'builds upon itself'
refused 'writable = true\n' 'it names no image'
# All keys of a file at once, with their hints, and the file once.
printf 'imag = "x"\nenvv = 1\n' >wrong.toml
fails 1 as alice skiff edf check ./wrong.toml
equal "$out" $'./wrong.toml:1: there is no key "imag" ("image" may be meant)\n./wrong.toml:2: there is no key "envv" ("env" may be meant)'
printf 'image = "10.77.0.1:5000#tools/env:1"\nmounts = ["/nowhere:/x"]\n' >wrong.toml
fails 1 as alice skiff edf check ./wrong.toml
has "$out" '/nowhere: No such file'
fails 125 as alice skiff run wrong.toml true
has "$err" '/nowhere'
printf 'image = "10.77.0.1:5000#tools/env:1"\nmounts = ["/a.sqsh:/x:sqsh"]\n' >wrong.toml
fails 125 as alice skiff run wrong.toml true
has "$err" 'mount of /a.sqsh: '
fails 125 as alice srun -Q --environment=./wrong.toml true
has "$err" 'mount of /a.sqsh: '
fails 1 as alice skiff edf check ./wrong.toml
has "$out" '/a.sqsh: No such file'
fails 125 as alice srun -Q --environment=jobb true
has "$err" 'or write a definition jobb.toml'
has "$err" 'the definition job may be meant'
{ printf 'image = "10.77.0.1:5000#tools/env:1"\nenv.A = "'; head -c 140000 /dev/zero | tr '\0' a; printf '"\n'; } >wrong.toml
fails 125 as alice srun -Q --environment=./wrong.toml true
has "$err" 'fewer or shorter variables'
printf 'image = "10.77.0.1:5000#tools/env:1"\nannotations.com.hooks.cxi.enabled = "true"\nenv.A = "${NOT_SET}"\n' >wrong.toml
fails 125 as alice skiff run wrong.toml true
has "$err" 'annotation com.hooks.cxi.enabled=true: this site has no module cxi'
has "$err" 'variable A of the definition: the variable NOT_SET is not set'
fails 125 as alice srun -Q --environment=./wrong.toml true
has "$err" 'variable A of the definition: the variable NOT_SET is not set'
mkfifo wrong.fifo.toml && chown alice wrong.fifo.toml
fails 125 timeout 30 setpriv --reuid alice --regid alice --init-groups env -i HOME=/home/alice PATH=/usr/bin:/bin skiff run wrong.fifo.toml true
has "$err" 'nothing has come of it in time'
fails 125 as alice skiff run none.toml true
has "$err" 'none.toml: No such file'
# The schema for editors is installed, and is JSON.
json "$(cat /usr/share/doc/skiff/edf.schema.json)" 'd["properties"]["image"]'
