# takes: 35
# Containers of jobs in the words of Pyxis: srun, sbatch and salloc with --container-image and all that goes with it.
. "$(dirname "$0")/../lib.sh"
# Where the nodes reach it too.
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
image=10.77.0.1:5000#tools/env:1
skeleton "$root"
for command in hostname sort head ln mkfifo chown cut sed; do ln -sf busybox "$root/bin/$command"; done
echo one >"$root/etc/version"
mkdir "$root/opt" "$root/data"
printf '#!/bin/sh\necho tool of the image\n' >"$root/opt/tool" && chmod 755 "$root/opt/tool"
printf '#!/bin/sh\nexport ENTERED=yes\nexec "$@"\n' >"$root/opt/entry" && chmod 755 "$root/opt/entry"
start_registry
make_store
node_stores
push tools/env:1 "$root" --config '{"Entrypoint":["/opt/entry"],"Env":["PATH=/opt:/usr/bin:/bin","FROM_IMAGE=yes","LANG=C"],"WorkingDir":"/data"}'
digest=${pushed#sha256:}
cd /home/alice
in_image() { ok as alice srun -Q "$@"; }

# The image's files, variables and directory; the user as himself, with his own variables and his home.
in_image -N2 --container-image=$image sh -c 'tool; echo $FROM_IMAGE $MINE; pwd; id -un; [ -d ~ ] && echo home; hostname'
equal "$(sort <<<"$out" | uniq -c | xargs)" '2 /data 2 alice 2 home 1 n1 1 n2 2 tool of the image 2 yes'
in_image --container-image="$image" sh -c 'echo $LANG [$LD_LIBRARY_PATH] $SLURM_PROCID'
equal "$out" 'C [] 0'
ok as alice env LANG=C.UTF-8 LD_LIBRARY_PATH=/x srun -Q --container-env=LANG,LD_LIBRARY_PATH --container-image=$image sh -c 'echo $LANG [$LD_LIBRARY_PATH]'
equal "$out" 'C.UTF-8 [/x]'
for option in --environment=image:$registry/tools/env:1 --container-image=docker://nobody@$image; do
    in_image $option tool
    equal "$out" 'tool of the image'
done
in_image -w n1 --container-image=$image --no-container-mount-home sh -c '[ ! -e ~ ] && echo none'
equal "$out" none
in_image --container-image=$image --container-workdir=/opt pwd
equal "$out" /opt
in_image --container-image=$image --container-entrypoint sh -c 'echo $ENTERED'
equal "$out" yes
in_image --container-image=$image --container-remap-root sh -c 'id -u; touch /etc/new; stat -c %u /etc/new'
equal "$out" $'0\n0'
fails 1 as alice srun -Q --container-image=$image --container-readonly touch /new
has "$err" 'Read-only file system'

# Where the image's maker names no directory, tasks begin in the step's, which is shown there. One that cannot be is named once.
mv "$root/opt" "$root/data" "$images_tmp" && push tools/plain:1 "$root"
plain=10.77.0.1:5000#tools/plain:1
install -d -o alice /srv/work /srv/other && echo of-host >/srv/work/file
ok as alice env -C /srv/work srun -Q -N2 --container-image=$plain sh -c 'pwd; cat file'
equal "$(sort <<<"$out" | uniq -c | xargs)" '2 /srv/work 2 of-host'
ok as alice env -C /srv/work srun -Q -n2 -N1 -D /srv/other --container-image=$plain pwd
equal "$out" $'/home/alice\n/home/alice'
equal "$err" 'skiff: working directory /srv/other: No such file or directory (os error 2); starting in /home/alice'
# All that was said may be long.
for i in $(seq 40); do mounts+="${mounts:+,}/srv/work:/mnt/$(printf '%0150d' "$i")"; done
in_image --container-image=$plain --container-mounts="$mounts" sh -c 'set -- /mnt/*/file; echo $#'
equal "$out" 40
# The home is not shown as such a directory to who wants none.
in_image -w n1 --container-image=$plain --no-container-mount-home sh -c 'pwd; [ -e ~ ] || echo none'
equal "$out" $'/\nnone'
ok as alice skiff env create here
install -d -o alice /home/project
ok as alice sh -c 'cd /home/project && srun -Q -N2 --environment=here pwd && skiff env rm -f here'
equal "$out" $'/home/project\n/home/project'
rm -r /srv/work /srv/other /home/project
mv "$images_tmp/opt" "$images_tmp/data" "$root"

# An image that was imported runs on all nodes. No registry has it, and none is asked.
ok as alice skiff pull --quiet $registry/tools/env:1
ok as alice skiff export $registry/tools/env:1 docker-archive:mine.tar
ok as alice skiff import mine.tar mine
rm mine.tar
: >"$registry_log"
for times in first second; do
    in_image -N2 --container-image=mine sh -c 'tool; echo $FROM_IMAGE; pwd; hostname'
    equal "$(sort <<<"$out" | uniq -c | xargs)" '2 /data 1 n1 1 n2 2 tool of the image 2 yes' $times
done
ok as alice skiff env create of-mine --base image:mine
inside alice of-mine 'echo changed >/opt/new'
in_image -N2 --environment=of-mine sh -c 'tool; cat /opt/new'
equal "$(sort <<<"$out" | uniq -c | xargs)" '2 changed 2 tool of the image'
equal "$(cat "$registry_log")" '' 'what the registry was asked'
ls .local/share/skiff/depot/images/*.erofs >/dev/null
# A new container of such an image, which has another id on nodes, is not one that was there; a name with a slip is told the nearest.
in_image -n1 --container-image=mine --container-name=own:create tool
equal "$out" 'tool of the image'
equal "$err" '' 'a new container'
fails 125 as alice srun -Q --container-image=localhost/mina true
has "$err" 'your image localhost/mine:latest may be meant'
# Ranks that each start a container of their own share no memory: the first one of a node says so.
for rank in 0 1; do
    ok as alice env PMIX_RANK=$rank OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$rank skiff run mine tool
    equal "$(grep -c "image mine: this node's 2 ranks run in a container each" <<<"$err" || true)" $((1 - rank)) "rank $rank"
done
ok as alice skiff env rm --force of-mine
ok as alice skiff rmi mine $registry/tools/env:1
equal "$(ls .local/share/skiff/depot/images)" ''
# So does one that was made of an instance by `skiff commit`, by its name and by its digest.
ok as alice skiff run -d --name maker --writable --root $registry/tools/env:1 sh -c 'echo made >/opt/made; until [ -e /opt/never ]; do sleep 1; done'
eventually 5 as alice skiff exec maker cat /opt/made
ok as alice skiff commit --quiet maker made:2
committed=$out
ok as alice skiff rm -f maker
: >"$registry_log"
for name in made:2 "$committed"; do
    in_image -N2 --container-image="$name" cat /opt/made
    equal "$out" $'made\nmade' "$name"
done
fails 125 as alice skiff run --pull always made:2 true
has "$err" 'not in a registry'
equal "$(cat "$registry_log")" '' 'what the registry was asked'
# A copy whose making was killed is left over.
touch .local/share/skiff/depot/images/.new.4999999.x@ctl && chown alice .local/share/skiff/depot/images/.new*
ok as alice skiff sweep
has "$out" 'removed copy of an image /home/alice/.local/share/skiff/depot/images/.new.4999999.x@ctl'
ok as alice skiff rmi made:2 $registry/tools/env:1
equal "$(ls -A .local/share/skiff/depot/images)" ''

# Mounts: from the node, read-only or not, in a place that the image does not have.
as alice sh -c 'mkdir -p in sub; echo content >in/file'
in_image --container-image=$image --container-mounts=/home/alice/in:/some/place:ro,./sub:/sub:rw+rprivate --container-mounts=/etc/hostname:/etc/outside \
    sh -c 'cat /some/place/file; touch /some/place/x 2>/dev/null || echo read-only; touch /sub/made; [ -s /etc/outside ] && echo file'
equal "$out" $'content\nread-only\nfile'
test -e sub/made
fails 125 as alice srun -Q --container-image=$image --container-mounts=/no/such:/x true
has "$err" 'mount of /no/such'
# What the node mounts there later comes in by rslave, and not by rprivate.
on n1 sh -c 'mkdir -p /run/later && mount -t tmpfs later /run/later && mount --make-shared /run/later && mkdir -p /run/later/new'
start alice srun -Q -n1 -w n1 --container-image=$image --container-mounts=/run/later:/slave:ro+rslave,/run/later:/private:ro+rprivate \
    sh -c 'touch /home/alice/begun; until [ -e /home/alice/go ]; do sleep 0.05; done; echo $(ls /slave/new) and $(ls /private/new)' >/shared/later
eventually 15 test -e begun
on n1 sh -c 'mount -t tmpfs new /run/later/new && touch /run/later/new/file'
as alice touch go
wait $started
on n1 sh -c 'umount /run/later/new && umount /run/later && rmdir /run/later'
equal "$(cat /shared/later)" 'file and'
rm -f go begun /shared/later
# IPC is each container's own, asked for or not, and one step's tasks share it.
ok as alice srun -Q -n1 -w n1 stat -L -c %i /proc/self/ns/ipc
nodes_own=$out
for how in '' --container-unshare=ipc; do
    in_image -N1 -n2 -w n1 --container-image=$image $how stat -L -c %i /proc/self/ns/ipc
    equal "$(sort -u <<<"$out" | wc -l)" 1 "IPC $how"
    lacks "$out" "$nodes_own" "IPC $how"
done

# ---- Batch scripts: the script itself, by options within; its steps, which go on where it is; and other containers for steps
cat >script <<'E'
#!/bin/sh
#SBATCH -N2 -n2 -o out.script
#SBATCH --container-image=10.77.0.1:5000\#tools/env:1 --container-mounts=/home/alice/in:/in
tool
pwd
cd /opt
echo changed >/changed
srun -Q sh -c 'tool; pwd; cat /in/file; cat /changed || true'
srun -Q -N1 -n1 -w n1 --container-image=10.77.0.1:5000#tools/env:1 sh -c 'pwd; [ ! -e /changed ] && [ ! -e /in ] && echo another'
srun -Q -N1 -n1 -w n1 --environment=none sh -c '[ ! -e /opt/tool ] && echo bare'
sbatch --parsable -n1 -N1 -o ~/out.nested --wrap 'tool; cat /in/file' >~/nested
E
ok as alice sbatch --parsable script
equal "$(ended "$out")" 'COMPLETED 0:0' "$(cat out.script)"
equal "$(sed "s/can't.*/no \/changed/" out.script | sort | uniq -c | xargs)" '2 /data 2 /opt 1 another 1 bare 1 cat: no /changed 1 changed 2 content 3 tool of the image'
equal "$(ended "$(cat nested)")" 'COMPLETED 0:0'
equal "$(cat out.nested)" $'tool of the image\ncontent'
ok as alice salloc -Q -N2 --container-image=$image srun tool
equal "$out" $'tool of the image\ntool of the image'
# In a job on the bare node a step may ask for an image: the job's --environment=none, which Slurm repeats on the node, is not the step's.
ok as alice salloc -Q -n1 -N1 --environment=none srun -Q --container-image=$image tool
equal "$out" 'tool of the image'
# Words behind the program's name are the program's, though one is called like an option of srun's.
ok as alice salloc -Q -n1 -N1 --environment=none srun -Q --container-image=$image tool --environment=none
equal "$out" 'tool of the image'
ok as alice sbatch --parsable -n1 -N1 -o out.bare --environment=none --wrap "srun -Q --container-image=$image tool; srun -Q sh -c '[ ! -e /opt/tool ] && echo bare'"
equal "$(ended "$out")" 'COMPLETED 0:0' "$(cat out.bare)"
equal "$(cat out.bare)" $'tool of the image\nbare'
in_image --export=NONE --container-image=$image /opt/tool
equal "$out" 'tool of the image'

# Variables of PyTorch's for each task, as docs/coming-from.md has them.
ranks() { sed -n '/^export MASTER_ADDR/,/^srun/p' /usr/share/doc/skiff/coming-from.md; }
{ echo '#!/bin/sh' && ranks | sed "s,IMAGE,$image,; s,exec python3 train.py,echo \$MASTER_ADDR:\$MASTER_PORT \$WORLD_SIZE \$RANK \$LOCAL_RANK,"; } >script
ok as alice sbatch --parsable -N2 --ntasks-per-node=2 -o out.ranks script
equal "$(ended "$out")" 'COMPLETED 0:0' "$(cat out.ranks)"
equal "$(sort out.ranks)" $'n1:29500 4 0 0\nn1:29500 4 1 1\nn1:29500 4 2 0\nn1:29500 4 3 1'

# Heterogeneous jobs: their parts are in one image, and a step of one part may ask for another.
push tools/part:1 "$root" --config '{"Env":["PATH=/opt:/usr/bin:/bin","FROM_IMAGE=part"]}'
part=10.77.0.1:5000#tools/part:1
show='echo $FROM_IMAGE $(tool) $(hostname)'
in_image -n1 -w n1 --container-image=$image sh -c "$show" : -n1 -w n2 --container-image=$image sh -c "$show"
equal "$(sort <<<"$out")" $'yes tool of the image n1\nyes tool of the image n2'
cat >script <<E
#!/bin/sh
#SBATCH -n1 -w n1 -o out.het --container-image=10.77.0.1:5000\\#tools/env:1
#SBATCH hetjob
#SBATCH -n1 -w n2 --container-image=10.77.0.1:5000\\#tools/env:1
srun -Q --het-group=0,1 sh -c '$show'
srun -Q --het-group=1 --container-image=$part sh -c '$show'
E
ok as alice sbatch --parsable script
equal "$(ended "$out" | xargs)" 'COMPLETED 0:0 COMPLETED 0:0' "$(cat out.het)"
equal "$(grep -v ^srun: out.het | sort)" $'part tool of the image n2\nyes tool of the image n1\nyes tool of the image n2'
ok as alice salloc -Q -n1 -w n1 : -n1 -w n2 sh -c "srun -Q --het-group=0 --container-image=$image sh -c '$show'; srun -Q --het-group=1 --container-image=$part sh -c '$show'"
equal "$(grep -v ^srun: <<<"$out" | sort)" $'part tool of the image n2\nyes tool of the image n1'
# Refused as a whole where that is asked for at submission: on the command line, and in the lines of a script.
lines() { # OPTIONS : OPTIONS
    local options="$*"
    printf '#!/bin/sh\n#SBATCH -n1 %s\n#SBATCH hetjob\n#SBATCH -n1 %s\ntouch ran\n' "${options%% : *}" "${options##* : }" | sed 's,:5000#,:5000\\#,' >script
    as alice sbatch script
}
by() { # COMMAND OPTIONS : OPTIONS
    local options="${*:2}"
    case $1 in
    lines) lines "$options" ;;
    srun) as alice srun -n1 ${options%% : *} touch ran : -n1 ${options##* : } touch ran ;;
    salloc) as alice salloc -n1 ${options%% : *} : -n1 ${options##* : } touch ran ;;
    sbatch) as alice sbatch -n1 ${options%% : *} : -n1 ${options##* : } --wrap 'touch ran' ;;
    esac
}
for command in srun salloc sbatch lines; do
    fails 125 by $command --container-image=$image : --container-image=$part
    has "$err" 'the parts of a heterogeneous job must have the same environment or image' "$command"
    has "$err" 'hint: give each part a step of its own: srun --het-group=N --container-image=IMAGE' "$command"
    has "$err" 'nothing was submitted' "$command"
    fails 125 by $command --mem=0 : --container-image=$image
    has "$err" 'the first part of a heterogeneous job has no environment or image' "$command"
    fails 125 by $command --container-image=$image --container-mounts=/srv:/a : --container-image=$image --container-mounts=/srv:/b
    has "$err" 'the parts of a heterogeneous job must have the same --container-mounts' "$command"
done
equal "$(squeue -h -u alice)" '' 'what was submitted'
test ! -e ran
idle

# A name keeps what was changed for later steps of the job, which may mount something else; steps at one time are in one container.
cat >script <<'E'
#!/bin/sh
#SBATCH -N2 -n4 -o out.script
image=10.77.0.1:5000#tools/env:1
first() { srun -Q -N1 -n1 -w n1 --exact "$@"; }
srun -Q -N2 -n2 --container-name=work --container-image=$image sh -c 'echo kept >/kept; rm /etc/version; touch /dev/shm/gone'
srun -Q -N2 -n2 --container-name=work sh -c 'cat /kept; [ ! -e /etc/version ] && [ ! -e /dev/shm/gone ] && echo ours'
srun -Q -N2 -n2 --container-name=work --container-readonly --container-mounts=/home/alice/in:/in sh -c 'cat /in/file; touch /x 2>/dev/null || echo read-only'
first --container-name=work --container-remap-root sh -c 'id -u; cat /kept; chown 5 /kept'
first --container-name=work --container-image=10.77.0.1:5000#tools/other:1 cat /kept
first --container-name=work sh -c 'echo 1 >/first; until [ -e /second ]; do sleep 0.02; done; echo met' || echo "exit code $?" &
first --container-name=work sh -c 'echo 2 >/second; until [ -e /first ]; do sleep 0.02; done; echo met' || echo "exit code $?" &
wait
first --container-image=$image sh -c '[ ! -e /kept ] && echo another'
first --container-name=missing touch ran
echo $?
E
push tools/other:1 "$root" --config '{"Env":["OTHER=1"]}'
ok as alice sbatch --parsable script
equal "$(ended "$out")" 'COMPLETED 0:0' "$(cat out.script)"
has "$(cat out.script)" "skiff: container work: it is there already, over image $registry/tools/env:1, and is used as it is"
has "$(cat out.script)" 'container:missing: this job has no such container on node n1'
equal "$(grep -vE 'container|^srun:' out.script | sort | uniq -c | xargs)" '1 0 1 125 1 another 2 content 4 kept 2 met 2 ours 2 read-only' "$(cat out.script)"
test ! -e ran
idle

# A step that names a running container sees what is mounted in it, unless it wants none of that; and what it says for nothing it is told.
cat >script <<'E'
#!/bin/sh
#SBATCH -N1 -n4 -w n1 -o out.script
image=10.77.0.1:5000#tools/env:1
step() { srun -Q -n1 --overlap "$@"; }
step --container-name=modes:create --container-image=$image --container-remap-root mkdir /own
step --container-name=modes:create --container-image=$image touch ~/ran; echo create $?
step --container-name=modes:exec touch ~/ran; echo exec $?
step --container-name=modes --container-remap-root sh -c 'mount -t tmpfs none /own; touch /own/mine /home/alice/up; until [ -e /home/alice/down ]; do sleep 0.1; done' &
until [ -e up ]; do sleep 0.1; done
step --container-name=modes:exec ls /own
step --container-name=modes ls /own
echo no_exec $(step --container-name=modes:no_exec ls /own)
step --container-name=modes --container-mounts=/home/alice/in:/in ls /in
step --container-name=modes --container-unshare=net touch ~/ran; echo unshare $?
touch down
wait
step --container-image=$image sh -c 'touch /home/alice/up2; until [ -e /home/alice/down2 ]; do sleep 0.1; done' &
until [ -e up2 ]; do sleep 0.1; done
unnamed=$(ls -d /run/skiff/jobs/$SLURM_JOB_ID/user/container.*)
step --container-name=$SLURM_JOB_ID.${unnamed##*.} sh -c 'tool; touch /home/alice/down2'
wait
step --container-name=$SLURM_JOB_ID.77 touch ~/ran; echo missing $?
# One that could not be made is not there; of two that make one at a moment, one does.
step --container-name=again:create --container-image=$image --container-mounts=/nowhere:/x touch ~/ran; echo failed $?
step --container-name=again:create --container-image=$image touch /made; echo again $?
for number in 1 2; do (step --container-name=both:create --container-image=$image touch /made; echo $? >created.$number) & done
wait
echo both $(sort -n created.1 created.2)
E
ok as alice sbatch --parsable script
equal "$(ended "$out")" 'COMPLETED 0:0' "$(cat out.script)"
equal "$(grep -v '^skiff:\|^hint:\|^srun:\|^ls:' out.script)" $'create 125\nexec 125\nmine\nmine\nno_exec\nunshare 125\ntool of the image\nmissing 125\nfailed 125\nagain 0\nboth 0 125' 'modes'
for text in 'container modes: this job has one of that name on node n1' 'container modes: it is not running on node n1' \
    'container modes: it is running already on node n1; ignoring --container-mounts' 'not in a separate network namespace'; do
    has "$(cat out.script)" "$text"
done
test ! -e ran
rm -f up down up2 down2 created.*
# From outside, --jobid makes it a step, which enters what another one has.
printf '#!/bin/sh\nsrun -Q --container-image=%s sh -c "touch ~/up; until [ -e ~/down ]; do sleep 0.1; done"\n' $image >script
ok as alice sbatch --parsable -n1 -w n1 -o out.outside script
outside=$out
eventually 30 test -e up
ok as alice srun -Q --jobid=$outside --overlap -n1 --container-name=$outside.0:exec tool
equal "$out" 'tool of the image'
touch down
equal "$(ended "$outside")" 'COMPLETED 0:0' "$(cat out.outside)"
rm -f up down
# What is said at submission wins over what the script says.
printf '#!/bin/sh\n#SBATCH -n1 -o out.later --container-image=%s\ntool\nsrun -Q --container-name=$SLURM_JOB_ID.batch:exec true\nsrun -Q --container-mounts=/srv:/s true\n' nowhere.invalid/none >script
ok as alice sbatch --parsable --container-image=$image script
equal "$(ended "$out")" 'FAILED 125:0' "$(cat out.later)"
has "$(cat out.later)" 'tool of the image'
has "$(cat out.later)" '.batch: the job'"'"'s own container is not entered by a name'
has "$(cat out.later)" "name the image again: --container-image=$registry/tools/env:1"
# What the variables of Skiff's are for, docs/environments.md says.
ok as alice srun -Q -n1 --container-image=$image env
equal "$(grep -o '^[A-Z_]*SKIFF[A-Z_]*' <<<"$out" | sort | xargs)" 'SKIFF_ENVIRONMENT SKIFF_IMAGE SKIFF_JOB SLURM_SKIFF_JOB'
fails 125 as alice srun -Q --container-name=modes:exec true
has "$err" 'a job that begins has no running container'
fails 125 as alice srun -Q --container-name=modes:odd true
has "$err" 'is not auto, create, exec or no_exec'

# Namespaces of its own: loopback alone, and a host name that is nobody else's.
in_image -w n1 -n2 --container-image=$image --container-unshare=net,uts --container-remap-root \
    sh -c 'hostname; [ $SLURM_PROCID != 0 ] || { hostname other; sed 1,2d /proc/net/dev | cut -d: -f1; }; sleep 0.2'
equal "$(sort -u <<<"${out// /}" | grep -v other)" $'lo\nn1'
equal "$(on n1 hostname)" n1
fails 125 as alice srun -Q --container-image=$image --container-unshare=mnt true
has "$err" 'unknown namespace'

# Pyxis' variables stand for options that are not given, and stay behind when a job has its container by them.
ok as alice env PYXIS_CONTAINER_IMAGE=$image PYXIS_CONTAINER_MOUNTS=/home/alice/in:/in PYXIS_CONTAINER_READONLY=1 srun -Q sh -c 'tool; cat /in/file; touch /x 2>/dev/null || echo read-only'
equal "$out" $'tool of the image\ncontent\nread-only'
ok as alice env PYXIS_CONTAINER_MOUNTS=/home/alice/in:/in srun -Q sh -c '[ -e /opt/tool ] || echo bare'
equal "$out" bare
ok as alice env PYXIS_CONTAINER_IMAGE=$image sbatch --parsable -n1 -N1 -o out.variables --wrap 'echo changed >/changed; srun -Q sh -c "cat /changed; echo [\$PYXIS_CONTAINER_IMAGE]"'
equal "$(ended "$out")" 'COMPLETED 0:0' "$(cat out.variables)"
equal "$(cat out.variables)" $'changed\n[]'

# Memory, root's home, and mounts that are no source of others.
in_image --container-image=$image --container-mounts=tmpfs:/scratch:size=1m,/home/alice/in:/in:unbindable+ro --container-remap-root --container-mount-home \
    sh -c 'grep -c " /scratch .*size=1024k" /proc/self/mountinfo; grep -c " /in ro" /proc/self/mountinfo; ls -d /root/in'
equal "$out" $'1\n1\n/root/in'
# (In a step, which has a copy of the container's mounts, Linux 6.18 forgets it.)
ok as alice skiff run -v /home/alice/in:/in:unbindable $registry/tools/env:1 grep -c ' /in .* unbindable ' /proc/self/mountinfo
equal "$out" 1
ok as alice skiff rmi $registry/tools/env:1

# ---- What it has become is kept in a file, when its last task has ended: of the first node, with files of others' ids and without mounts.
in_image -N2 -n3 --container-image=$image --container-mounts=/home/alice/in:/in --container-save=./kept.sqsh \
    sh -c 'hostname >/of-node; [ $SLURM_PROCID = 0 ] || { sleep 0.5; echo late >/late; }; rm -f /etc/version; : >/opt/$SLURM_PROCID; ln /opt/$SLURM_PROCID /opt/link.$SLURM_PROCID; mkfifo /opt/pipe; : >/in/touched'
equal "$(stat -c %U kept.sqsh)" alice
in_image --container-image=./kept.sqsh sh -c 'cat /of-node /late; ls /etc/version /in/touched 2>/dev/null; [ -p /opt/pipe ] && echo pipe; stat -c %h /opt/0 /opt/link.1; echo [$FROM_IMAGE]'
equal "$out" $'n1\nlate\npipe\n2\n2\n[yes]'
ok unsquashfs -ll kept.sqsh
has "$out" squashfs-root/opt/tool
lacks "$out" run/skiff
# As root inside, with all that the image says; and the task's own end is the step's.
fails 3 as alice srun -Q --container-image=$image --container-remap-root --container-save=oci-archive:kept.tar sh -c 'echo of bin >/opt/file; chown 2:3 /opt/file; exit 3'
in_image --container-image=oci-archive:./kept.tar --container-remap-root sh -c 'cat /opt/file; stat -c "%u %g" /opt/file; echo $FROM_IMAGE; pwd'
equal "$out" $'of bin\n2 3\nyes\n/data'
# One whose first task fails does not wait for others, which may wait for it: they end when Slurm has heard of it.
try as alice timeout 60 srun -Q -K -N1 -n2 --container-image=$image --container-save=./failed.sqsh sh -c '[ $SLURM_PROCID != 0 ] || { touch /opt/begun; exit 3; }; sleep 1000'
[[ $code == @(3|143) ]] || fail "$code: $err"
in_image --container-image=./failed.sqsh ls /opt/begun
# That of a batch script, at its end, not at that of its steps, wherever they are.
ok as alice sbatch --parsable -N2 -n2 -o out.saved --container-image=$image --container-save=/home/alice/batch.sqsh --wrap 'srun -N1 -n1 -w n2 touch /elsewhere; srun touch /by-step; [ ! -e /home/alice/batch.sqsh ] && echo not yet; touch /by-script'
equal "$(ended "$out")" 'COMPLETED 0:0' "$(cat out.saved)"
equal "$(cat out.saved)" 'not yet'
in_image --container-image=./batch.sqsh ls /by-step /by-script
# What cannot be written is said, and leaves nothing.
fails 125 as alice srun -Q -n1 --container-image=$image --container-save=/no/such/file touch ran
test ! -e ran
has "$err" '--container-save'
has "$err" /no/such
fails 125 as alice srun -Q --container-image=$image --container-save=x.sif true
has "$err" 'nothing was submitted'
fails 125 as alice salloc -Q --container-image=$image --container-save=x true
has "$err" 'for srun and sbatch'
fails 125 as alice srun -Q -n2 --container-image=$image --container-save=/home/alice touch ran
has "$err" '/home/alice: it is a directory'
test ! -e ran
ok as alice sbatch --parsable -w n1 -n1 -o out.saved --container-image=$image --container-save=/home/alice/cancelled.sqsh --wrap 'touch /opt/begun /home/alice/begun; sleep 100'
eventually 15 test -e begun
# One that is cancelled is kept as it then is.
scancel "$out"
ended "$out" >/dev/null
idle
in_image --container-image=./cancelled.sqsh ls /opt/begun
equal "$out" /opt/begun

# ---- What was submitted is what runs, whatever the name means by now
ok as alice sbatch --parsable --hold -N2 -n2 -o out --container-image=$image --wrap 'srun cat /etc/version'
job=$out
echo two >"$root/etc/version"
push tools/env:1 "$root"
in_image --container-image=$image cat /etc/version
equal "$out" two
ok as alice scontrol release "$job"
equal "$(ended "$job")" 'COMPLETED 0:0'
equal "$(cat out)" $'one\none'
# A user's own is what he has pulled.
ok as alice skiff pull --quiet $registry/tools/other:1
echo three >"$root/etc/version"
push tools/other:1 "$root"
in_image --container-image=$registry/tools/other:1 cat /etc/version
equal "$out" one
ok as bob srun -Q --container-image=$registry/tools/other:1 sh -c 'cat /etc/version; id -un; ls /home'
equal "$out" $'three\nbob\nbob'

# ---- An image that is gone when the job begins: the job ends at once and says why, and no part of it runs anywhere.
echo queued >"$root/etc/version"
push tools/gone:1 "$root"
gone=$registry/tools/gone:1
held() { # NAME OPTIONS...: a job that waits, on nodes that do not have its image
    ok as alice sbatch --parsable --hold -N2 -n2 -o "out.$1" "${@:2}" --wrap "touch ran.$1; srun -N2 touch ran.$1"
    job=$out
}
too_late() { # NAME WHY...: what its output says
    local why
    ok as alice scontrol release "$job"
    equal "$(ended "$job")" 'FAILED 125:0' "$(cat "out.$1")"
    for why in "${@:2}" 'hint: '; do has "$(cat "out.$1")" "$why" "$1"; done
    test ! -e "ran.$1"
    idle
}
# A file of the user's.
ok as alice skiff pull --quiet $gone
ok as alice skiff export $gone docker-archive:gone.tar
held file --container-image=docker-archive:./gone.tar
ok as alice skiff rmi $gone
rm gone.tar
too_late file 'node n' gone.tar 'No such file'
# One that was imported has a copy in the depot, which goes with its name; no node has it.
echo imported >"$root/etc/version"
push tools/other:2 "$root"
ok as alice skiff pull --quiet $registry/tools/other:2
ok as alice skiff export $registry/tools/other:2 docker-archive:queued.tar
ok as alice skiff import --quiet queued.tar queued:1
held imported --container-image=queued:1
ok as alice skiff rmi queued:1 $registry/tools/other:2
rm queued.tar
too_late imported 'node n' queued:1
# A registry that has its manifest no more.
held manifest --container-image=$gone
rm -r "$images_tmp/registry/docker/registry/v2/repositories/tools/gone/_manifests"
too_late manifest 'node n' tools/gone '404'
push tools/gone:2 "$root"

# ---- What cannot be: an error that says so, its code, nothing submitted, nothing run on the bare node
printf '#!/bin/sh\ntouch ran\n' >job
idle
refused() { # WORDS OPTIONS...
    local command
    for command in 'srun -n1 touch ran' 'sbatch job' 'salloc touch ran'; do
        fails 125 as alice "${command%% *}" "${@:2}" ${command#* }
        has "$err" "$1"
        has "$err" 'nothing was submitted'
    done
    [ -z "$(squeue -h)" ] && [ ! -e ran ] || fail "it ran: $(squeue)"
}
refused "$registry/tools/none" --container-image=10.77.0.1:5000#tools/none
refused 'the repository has capitals' --container-image=Tools
refused 'no container' --container-mounts=/x:/x
refused 'no container' --container-writable
refused 'exclude each other' --environment=dev --container-image=$image
refused 'cannot be used with' --container-readonly --container-writable --container-image=$image
refused 'the source "srv" is not an absolute path' --container-mounts=srv:/data --container-image=$image
refused 'write $HOME/none.sqsh' '--container-image=~/none.sqsh'
refused 'write $HOME/none.toml' '--environment=~/none.toml'
refused 'the flag "rx" is not known' --container-mounts=/a:/b:rx --container-image=$image
refused "NAME" --container-env=A=B --container-image=$image
refused 'you have not imported an image of this name' --container-image=localhost/none
refused '404' --container-image=$registry/tools/none:1
push tools/forbidden:1 "$root"
as alice sh -c 'cat >.config/containers/policy.json' <<'X'
{"default": [{"type": "insecureAcceptAnything"}], "transports": {"docker": {"10.77.0.1:5000/tools/forbidden": [{"type": "reject"}]}}}
X
refused policy --container-image=$registry/tools/forbidden:1
push tools/arm:1 "$root" --arch arm64
refused arm64 --container-image=$registry/tools/arm:1
fails 125 as alice srun -Q --container=/srv --container-image=$image touch ran
has "$err" "is Slurm's own option"
fails 127 as alice srun -Q --container-image=$image no-such-program
fails 125 as alice srun -Q --container-image=$image --container-workdir=/no/such true
has "$err" 'working directory /no/such'
has "$err" '--container-workdir=DIR starts in another'
ok as alice sbatch --parsable -n1 -o out --container-image=$image --container-mounts=/no/such:/x --wrap 'touch ran'
equal "$(ended "$out")" 'FAILED 125:0'
has "$(cat out)" 'mount of /no/such'

# Without the registry: who has pulled the image has it where a node has it; a node without a store runs nothing on its bare self.
held registry --container-image=$registry/tools/gone:2
stop_registry
too_late registry 'node n' "$registry"
fails 125 as alice srun --container-image=$registry/tools/none touch ran
has "$err" "$registry"
has "$err" 'nothing was submitted'
in_image -w n1 --container-image=$registry/tools/other:1 cat /etc/version
equal "$out" one
on n2 sh -c "umount -l /run/skiff/images/*; rm -rf /run/skiff/images/* $store"
fails 125 as alice srun -N2 --container-image=$registry/tools/other:1 sh -c 'touch ran.$(hostname)'
has "$err" 'node n2: '
has "$err" 'hint: '
test ! -e ran.n2
idle
