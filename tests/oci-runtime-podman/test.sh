# takes: 15
# Debian's Podman as an ordinary user, with Skiff as its OCI runtime: containers, exec, signals, and a pod.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../oci-runtime/lib.sh"
make_bundle
cd /home/alice
tar -C $bundle/rootfs -cf box.tar . && chown alice: box.tar
as alice mkdir -p .config/containers run
as alice sh -c 'printf "[storage]\ndriver = \"vfs\"\nrunroot = \"/home/alice/run/containers\"\ngraphroot = \"/home/alice/containers\"\n" >.config/containers/storage.conf
printf "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n[containers]\nlog_driver = \"k8s-file\"\n" >.config/containers/containers.conf'
podman() { as alice env XDG_RUNTIME_DIR=/home/alice/run podman --runtime /usr/bin/skiff-oci "$@"; }
ok podman import -q box.tar box
ok podman run --rm --network none box sh -c 'id -u; hostname >/dev/null; echo $0; grep -c . /etc/resolv.conf /etc/hosts >/dev/null; cat /proc/self/status | grep -E "^(Seccomp|NoNewPrivs):"'
equal "$(xargs <<<"$out")" '0 sh NoNewPrivs: 0 Seccomp: 2' "$err"
# Exit codes, input, users, mounts, a read-only root.
try podman run --rm --network none box sh -c 'exit 7'
equal "$code" 7
ok sh -c 'echo typed | "$@"' - setpriv --reuid alice --regid alice --init-groups env -i PATH=/usr/bin:/bin HOME=/home/alice XDG_RUNTIME_DIR=/home/alice/run \
    podman --runtime /usr/bin/skiff-oci run --rm -i --network none box cat
equal "$out" typed
ok podman run --rm --network none --user 7:8 -v /home/alice/.config:/in:ro --read-only --tmpfs /scratch box \
    sh -c 'id -u; id -g; [ -e /in/containers ] && echo mounted; touch /a || touch /in/a || echo read-only; touch /scratch/a && echo written'
equal "$(xargs <<<"$out")" '7 8 mounted read-only written' "$err"
ok podman run --rm -t --network none box tty
has "$out" /dev/pts/0
ok podman run --rm --network none --userns keep-id box sh -c 'id -u'
equal "$out" "$(id -u alice)"
# One in the background: more processes in it, signals, its logs, its end.
ok podman run -d --name back --network none box sh -c 'trap "echo ended; exit 3" TERM; echo begun; while :; do sleep 0.05; done'
eventually 10 sh -c "grep -qr begun /home/alice/containers/vfs-containers/*/userdata/ctr.log"
ok podman exec back sh -c 'echo in it; exec ps'
has "$out" 'in it'
ok podman exec -t back tty
has "$out" /dev/pts/
fails 5 podman exec back sh -c 'exit 5'
ok podman stop -t 10 back
ok podman inspect -f '{{.State.ExitCode}}' back
equal "$out" 3
ok podman logs back
equal "$out" $'begun\nended'
ok podman rm back
# A pod: containers that share network, IPC and host name.
ok podman pod create --name two --network none --infra-image box --infra-command '/bin/sleep 1000' --hostname ship
ok podman run -d --pod two --name one box sleep 1000
ok podman run --rm --pod two box sh -c 'hostname; readlink /proc/self/ns/net; readlink /proc/self/ns/ipc'
shared=$out
ok podman exec one sh -c 'hostname; readlink /proc/self/ns/net; readlink /proc/self/ns/ipc'
equal "$out" "$shared"
has "$out" ship
ok podman pod rm -f -t 0 two
ok podman ps -aq
equal "$out" ''
if pgrep -u alice sleep; then fail 'a process is left'; fi
as alice podman unshare rm -rf containers run || true
