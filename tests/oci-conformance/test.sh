# bed: --nodes 1
# by hand
# time: 1500
# The OCI's runtime-tools and runc's own tests, with `skiff oci` as an ordinary user's runtime. tests/oci-conformance/fetch gets them.
# Tests that fail are those of the file `expected`, which says why of each.
. "$(dirname "$0")/../lib.sh"
[ -d "$here/suites" ] || fail 'no suites: tests/oci-conformance/fetch gets them'
cp -a "$here/suites" /home/alice/suites
chown -R alice: /home/alice/suites
cp -a "$here/suites/debs/usr/." /usr/
# Control groups are of version 2, and none is alice's.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
trap 'umount /sys/fs/cgroup' EXIT

# A line for each case that does not pass: the file, and what the case is called; or that the program ended with an error.
failed_cases() { # FILE
    sed -nE 's/^not ok [0-9]+ (- )?//p' <<<"$out" | sed -E 's/ # TODO.*//; s/runc\.[A-Za-z0-9]{6}|[0-9]{6,}/N/g' | sort -u | sed "s|^|$1: |"
    [ "$code" = 0 ] || grep -q '^not ok' <<<"$out" || echo "$1: exit code $code: $(grep -v '^hint' <<<"$err" | tail -1)"
}
passed=0 skipped=0
count() {
    passed=$((passed + $(grep -cE '^ok ' <<<"$out" || true)))
    skipped=$((skipped + $(grep -ciE '^ok .*# skip' <<<"$out" || true)))
}
cd /home/alice/suites/runtime-tools
for file in *.t; do
    limit=60 try as alice env -C "$PWD" RUNTIME=/usr/bin/skiff-oci ./"$file"
    count
    failed_cases "$file"
done >/shared/failed
echo "runtime-tools: $((passed - skipped)) checks passed, $skipped skipped"
passed=0 skipped=0
cd /home/alice/suites/runc/tests/integration
for file in *.bats; do
    limit=200 try as alice env -C "$PWD" TERM=dumb RUNC=/usr/bin/skiff-oci bats --tap "$file"
    count
    failed_cases "$file"
done >>/shared/failed
echo "runc: $((passed - skipped)) tests passed, $skipped skipped"
# Those that fail by chance are left out on both sides.
sed -n 's/ ## sometimes: .*//p' "$here/expected" >/shared/sometimes
diff <(sed -n '/^#/d; s/ ## .*//p' "$here/expected" | grep -vxFf /shared/sometimes | sort) <(grep -vxFf /shared/sometimes /shared/failed | sort) ||
    fail 'other cases fail than expected (>: new)'
for id in $(as alice skiff-oci list -q); do as alice skiff-oci delete --force "$id"; done
