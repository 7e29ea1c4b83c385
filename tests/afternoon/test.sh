# bed: --ssh-force-command "/usr/bin/skiff login"
# takes: 40
# One day of alice's, typed at a terminal as a person types it: a real ssh client in tmux, a login that Skiff takes, jobs of Slurm, images of
# a real registry. Nothing is called in another way than by what appears on her screen.
. "$(dirname "$0")/../lib.sh"
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
config=$SKIFF_TESTBED_SSH_CONFIG
trap 'tmux -L afternoon kill-server 2>/dev/null || true; rm -f /usr/local/bin/site-tool; images_cleanup' EXIT

# What is there on that morning: an image in a registry, and a package that somebody has built for her.
root=$images_tmp/root
skeleton "$root"
echo 'Debian, as it seems' >"$root/etc/issue"
for command in date seq; do ln -sf busybox "$root/bin/$command"; done
start_registry
make_store
node_stores
push library/debian:12 "$root" --config '{"Cmd":["sh"],"Env":["PATH=/usr/bin:/bin"]}'
printf '[[registry]]\nlocation = "docker.io"\n[[registry.mirror]]\nlocation = "%s"\ninsecure = true\n' $registry >>/home/alice/.config/containers/registries.conf
mkdir -p lab/DEBIAN lab/usr/bin lab/usr/share/lab
printf 'Package: lab-tool\nVersion: 1.0\nArchitecture: all\nMaintainer: Bob <bob@localhost>\nDepends: bash\nDescription: computes\n' >lab/DEBIAN/control
printf '#!/bin/sh\necho "42 by $(hostname) as $(id -un)"\n' >lab/usr/bin/lab-tool
chmod 755 lab/usr/bin/lab-tool
chmod -R go+rX .
dpkg-deb --root-owner-group -Zgzip -b lab lab-tool.deb >/dev/null
# But for the directory in which the site gets a program in the course of the day.
host() { manifest | grep -v '^/usr/local/bin d '; }
host >before

PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/day.py" "$config" lab-tool.deb || fail 'at the terminal'

# The evening: the host is as it was, and nobody of hers is left but what she has left running.
rm /usr/local/bin/site-tool
host >after
diff before after >changed || fail "the host has changed: $(cat changed)"
ok as alice skiff ps
equal "$(sed 1d <<<"$out")" '' 'what is left running'
eventually 5 sh -c '! pgrep -u alice'
