# A root file system of one's own for a test bed, to be entered in mount and PID namespaces that were made for it; sourced by
# `run` and `versions`. $SKIFF_TEST_TMP is a directory on disk, $SKIFF_TEST_TMP.NUMBER what /var/tmp will be in there.

# Devices are the machine's, but not the directory: a test that makes one makes it for itself only.
make_devices() { # DIR
    mount -t tmpfs -o mode=755,nosuid dev "$1"
    (cd /dev && find . -xdev \( -type b -o -type c -o -type l \) -exec cp -a --parents -t "$1" {} +)
    mkdir -p "$1/pts" "$1/shm"
    # The kernel makes more of these when they are asked for, in the machine's directory.
    for number in $(seq 0 31); do [ -e "$1/loop$number" ] || mknod -m 660 "$1/loop$number" b 7 "$number"; done
    # As udev leaves it on machines that have udev; rootless environments need it.
    [ ! -c "$1/fuse" ] || chmod 666 "$1/fuse"
}

# The kernel counts processes, namespaces, pipes and keys for each user of the machine, whatever namespace they are in.
own_ids() { # LOGIN.DEFS NUMBER
    sed -i -E '/^(UID_MIN|GID_MIN|SYS_UID_MAX|SYS_GID_MAX|SUB_UID_MIN|SUB_GID_MIN)\s/d' "$1"
    printf '%s\n' "UID_MIN $((1000 + 100 * $2))" "GID_MIN $((1000 + 100 * $2))" "SYS_UID_MAX $((999 - 50 * $2))" "SYS_GID_MAX $((999 - 50 * $2))" \
        "SUB_UID_MIN $((100000 + 1000000 * $2))" "SUB_GID_MIN $((100000 + 1000000 * $2))" >>"$1"
}

# In memory, where it is made in seconds and goes with the namespace; what the nodes have on disk is in /var/tmp. (An overlay over the
# machine's root could not be a layer of the environments that stand on it.) Before Linux 6.6 tmpfs lacks what overlays and id maps
# want; there it is on disk.
enter_root() { # NUMBER PROGRAM-THAT-FILLS-IT
    local new=$SKIFF_TEST_TMP.root.$1 release
    mkdir -p "$new"
    release=$(uname -r)
    if printf '6.6\n%s\n' "$release" | sort -VC; then
        mount -t tmpfs -o mode=755,size=8g root "$new"
    else
        find "$new" -xdev -mindepth 1 -delete
        mount --bind "$new" "$new"
    fi
    "$2" "$new"
    own_ids "$new/etc/login.defs" "$1"
    mount --rbind /sys "$new/sys"
    mount -t proc proc "$new/proc"
    mount -t tmpfs -o mode=755 run "$new/run"
    make_devices "$new/dev"
    mount --bind "$SKIFF_TEST_TMP.$1" "$new/var/tmp"
    mkdir -p "$new/run/lock" "$new$SKIFF_TEST_TMP"
    mount --bind "$SKIFF_TEST_TMP" "$new$SKIFF_TEST_TMP"
    cd "$new"
    pivot_root . .
    umount -l .
    cd /
}
