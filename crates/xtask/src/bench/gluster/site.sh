# On the login node of a test bed, as root: GlusterFS on it, with one volume, which is everybody's /home from then on. The brick is a directory
# of the bed, so are the daemon's files. `site.sh up` makes it; `site.sh forget` has all nodes know nothing of what is on it.
set -euo pipefail
server=10.77.0.1
dir=$SKIFF_TESTBED_DIR/gluster
nodes="$SKIFF_TESTBED_NODES"

everywhere() { # CMD...: on the login node and all others
    "$@"
    for node in $nodes; do on "$node" "$@"; done
}

up() {
    mkdir -p "$dir"/{brick/home,state,log}
    mount --bind "$dir/state" /var/lib/glusterd
    mount --bind "$dir/log" /var/log/glusterfs
    cp -a /home/. "$dir/brick/home"
    glusterd --pid-file="$dir/glusterd.pid"
    gluster --mode=script volume create site "$server:$dir/brick" force
    gluster --mode=script volume start site
    everywhere mount -t glusterfs "$server:/site/home" /home
}

forget() {
    everywhere umount -l /home
    sync
    echo 3 >/proc/sys/vm/drop_caches
    everywhere mount -t glusterfs "$server:/site/home" /home
}

"$1"
