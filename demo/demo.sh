#!/bin/bash
# The main job, shown: alice's own software on a two-node Slurm, with nobody noticing. Run by `make demo`, as root, after the
# build. Everything happens in namespaces of the test bed's; the machine is as before when it ends.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
[ "$(id -u)" = 0 ] || { echo "demo: needs root, for the test bed" >&2; exit 1; }

make --no-print-directory -s stage
stage=${CARGO_TARGET_DIR:-$PWD/target}/stage
# The bed's own mounts, as a site would name its file systems.
printf 'mounts = ["/shared", "/etc/hosts:/etc/hosts:ro"]\n' >"$stage/etc/skiff/config.toml"

scratch=$(mktemp -d /var/tmp/skiff-demo.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
# Inside the bed there is no way out to Debian's mirrors: alice installs from a file, by the same apt.
(cd "$scratch" && apt-get -qq -o APT::Sandbox::User=root download hello)

cargo xtask testbed up --nodes 2 --install "$stage" --ssh-force-command "/usr/bin/skiff login" -- \
    bash "$PWD/demo/steps.sh" "$scratch"
