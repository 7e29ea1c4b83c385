# Jobs that a program submits by slurmrestd, in which no plug-in is loaded: what `skiff slurm submit` prints goes along with them.
# bed: --nodes 2 --slurm-conf AuthAltTypes=auth/jwt --slurm-conf AuthAltParameters=jwt_key=/etc/gshadow
# takes: 14
. "$(dirname "$0")/../lib.sh"
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
skeleton "$images_tmp/root"
for command in hostname echo; do ln -sf busybox "$images_tmp/root/bin/$command"; done
echo image >"$images_tmp/root/etc/marker"
start_registry
make_store
node_stores
push tools/rest:1 "$images_tmp/root"
# (The key of the bed's tokens is a file that only root reads, whatever that says.)
ok as alice skiff env create dev
inside alice dev 'echo dev >/etc/marker'
cd /home/alice

# A server of the site's, which takes tokens. Its first version is that of Slurm 22.05, the second that of later ones.
release=$(sinfo -V | grep -oE '[0-9]+\.[0-9]+')
version=v0.0.42 plugin=slurmctld
[ "$release" != 22.05 ] || version=v0.0.38 plugin=v0.0.38
token=$(scontrol token username=alice lifespan=600)
token=${token#SLURM_JWT=}
setpriv --reuid daemon --regid daemon --clear-groups env SLURM_JWT=daemon slurmrestd -s openapi/$plugin -a rest_auth/jwt 127.0.0.1:6820 >/shared/rest.log 2>&1 3>&- &
rest=$!
# It is no user's, so nobody else ends it, and a second try of this test wants its port.
stop_server() {
    local code=$?
    kill -KILL $rest 2>&- || true
    wait $rest 2>&- || true
    [ $code = 0 ] || tail -n 20 /shared/rest.log
    images_cleanup
}
trap stop_server EXIT
ask() { # PATH [CURL'S OPTION...]
    as alice curl -sS --max-time 20 -H 'X-SLURM-USER-NAME: alice' -H "X-SLURM-USER-TOKEN: $token" "${@:2}" "http://127.0.0.1:6820/slurm/$version/$1"
}
eventually 30 ask ping --fail

cat >script <<'X'
#!/bin/sh
echo $(cat /etc/marker 2>&1) $(hostname)
srun -N2 sh -c 'echo $(cat /etc/marker 2>&1) of step on $(hostname)'
X
submit() { # SPEC -> $job
    rm -f out.rest
    SPEC=$1 /usr/bin/python3 - $version >request <<'X'
import json, os, sys
variables = {"PATH": "/usr/bin:/bin"}
job = {"name": "rest", "current_working_directory": "/home/alice", "standard_output": "/home/alice/out.rest", "tasks": 2}
job["nodes" if sys.argv[1] == "v0.0.38" else "minimum_nodes"] = 2
if spec := os.environ["SPEC"]:
    variables["SKIFF_JOB"] = spec
    if sys.argv[1] != "v0.0.38":
        job["spank_environment"] = [f"SKIFF_JOB={spec}"]
job["environment"] = variables if sys.argv[1] == "v0.0.38" else [f"{name}={value}" for name, value in variables.items()]
print(json.dumps({"job": job, "script": open("/home/alice/script").read()}))
X
    ok ask job/submit -H 'Content-Type: application/json' --data-binary @request
    job=$(json "$out" 'd["job_id"]')
    [ "$job" != 0 ] || fail "nothing was submitted: $out"
}

ok as alice skiff slurm submit --environment=dev
submit "$(head -1 <<<"$out")"
equal "$(ended "$job")" 'COMPLETED 0:0' "$(cat out.rest)"
equal "$(sort out.rest)" $'dev n1\ndev of step on n1\ndev of step on n2'
idle
# In a container, of the image that the name means when `skiff slurm submit` is called, with what is said of it.
mkdir -p data && echo of-data >data/file && chown -R alice data
sed -i 's/^echo/cat \/data\/file 2>\&-; echo/' script
ok as alice skiff slurm submit --container-image=$registry/tools/rest:1 --container-mounts=/home/alice/data:/data
of_image=$(head -1 <<<"$out")
echo moved >"$images_tmp/root/etc/marker"
push tools/rest:1 "$images_tmp/root"
submit "$of_image"
equal "$(ended "$job")" 'COMPLETED 0:0' "$(cat out.rest)"
equal "$(sort out.rest)" $'image n1\nimage of step on n1\nimage of step on n2\nof-data'
idle
# One that is not there any more: the job says so, and nothing of it runs.
ok as alice skiff slurm submit --container-image=$registry/tools/rest:1
rm -r "$images_tmp/registry/docker/registry/v2/repositories/tools/rest/_manifests"
submit "$(head -1 <<<"$out")"
equal "$(ended "$job")" 'FAILED 125:0' "$(cat out.rest)"
has "$(cat out.rest)" '404'
has "$(cat out.rest)" 'hint: '
lacks "$(cat out.rest)" 'moved'
lacks "$(cat out.rest)" '/etc/marker'
idle
submit ''
equal "$(ended "$job")" 'COMPLETED 0:0'
none='cat: /etc/marker: No such file or directory'
equal "$(sort out.rest)" "$none n1"$'\n'"$none of step on n1"$'\n'"$none of step on n2"
idle
