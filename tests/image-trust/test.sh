# Whom and what is believed: the site's policy and the user's own, signatures, authorities for certificates. All of it counts in the
# site's store as in one of the user's.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
start_tls
make_store
site=/etc/containers/policy.json
own=/home/alice/.config/containers
saved=$images_tmp/policy.json
[ ! -e $site ] || cp -a $site "$saved"
cleanup() {
    rm -f $site
    [ ! -e "$saved" ] || cp -a "$saved" $site
    rm -rf /etc/{containers,docker}/certs.d/$secure
    rmdir -p --ignore-fail-on-non-empty /etc/{containers,docker}/certs.d 2>/dev/null || true
    images_cleanup
}
trap cleanup EXIT
mkdir -p /etc/containers
rm -f $site
skeleton "$root"
for name in free rejected strange signed unsigned; do
    echo $name >"$root/etc/name"
    push trust/$name:1 "$root"
    declare "digest_$name=$pushed"
done
openssl ecparam -genkey -name prime256v1 -noout -out "$images_tmp/key.pem"
openssl ec -in "$images_tmp/key.pem" -pubout -out /home/alice/key.pub 2>/dev/null
chmod 644 /home/alice/key.pub
python3 "$here/../images/registry.py" sign $registry/trust/signed:1 "$images_tmp/key.pem" "$digest_signed"

# ---- Policies -------------------------------------------------------------------------------------------------------------------
signed='[{"type": "sigstoreSigned", "keyPath": "/home/alice/key.pub"}]'
cat >"$images_tmp/policy" <<X
{"default": [{"type": "insecureAcceptAnything"}],
 "transports": {"docker": {"$registry/trust/rejected": [{"type": "reject"}], "$registry/trust/strange": [{"type": "signedByMoon"}],
    "$registry/trust/signed": $signed, "$registry/trust/unsigned": $signed},
    "oci-archive": {"": [{"type": "reject"}]}, "dir": {"/home/alice/bad": [{"type": "reject"}]}}}
X
# alice's files are for nobody else: what is asked of the system user must not need them.
chmod 750 /home/alice
for route in helper none; do
    [ $route = helper ] || export SKIFF_HELPER=none
    for whose in $site $own/policy.json; do
        # The system user reads the key that the site names.
        [ $whose = $own/policy.json ] || chmod 755 /home/alice
        install -m 644 -o alice "$images_tmp/policy" $whose
        for name in free signed; do
            ok as alice skiff pull --quiet $registry/trust/$name:1
            ok as alice skiff run $registry/trust/$name:1 cat /etc/name
            equal "$out" $name
            ok as alice skiff rmi $registry/trust/$name:1
        done
        for case in 'rejected it is rejected' 'strange "signedByMoon"' 'unsigned no signature'; do
            name=${case%% *}
            fails 125 as alice skiff pull --quiet $registry/trust/$name:1
            has "$err" "${case#* }" "$name by $whose, $route"
            has "$err" $whose
            fails 125 as alice skiff run $registry/trust/$name:1 true
        done
        # Files, too, by where they lie and what they are.
        rm -rf /home/alice/bad /home/alice/good
        skopeo copy --quiet --insecure-policy --src-tls-verify=false docker://$registry/trust/free:1 dir:/home/alice/good
        cp -r /home/alice/good /home/alice/bad
        skopeo copy --quiet --insecure-policy dir:/home/alice/good oci-archive:/home/alice/good.tar
        chown -R alice /home/alice/{good,bad,good.tar}
        ok as alice skiff import dir:/home/alice/good local:1
        ok as alice skiff rmi local:1
        for file in dir:/home/alice/bad oci-archive:/home/alice/good.tar /home/alice/good.tar; do
            fails 125 as alice skiff import $file local:2
            has "$err" 'it is rejected' "$file by $whose, $route"
        done
        rm $whose /home/alice/good.tar
        chmod 750 /home/alice
    done
    ok as alice skiff images --json
    equal "$out" '[]' $route
done
# One that is no policy is no leave.
as alice sh -c "echo '{' >$own/policy.json"
for route in helper none; do
    [ $route = helper ] && unset SKIFF_HELPER || export SKIFF_HELPER=none
    fails 125 as alice skiff pull --quiet $registry/trust/free:1
    has "$err" $own/policy.json
done
rm $own/policy.json

# ---- Certificates ---------------------------------------------------------------------------------------------------------------
install -m 600 -o alice "$images_tmp/ca.pem" /home/alice/ca.pem
image=$secure/trust/free:1
for route in helper none; do
    [ $route = helper ] && unset SKIFF_HELPER || export SKIFF_HELPER=none
    fails 125 as alice skiff pull --quiet $image
    has "$err" 'not to be trusted'
    has "$err" "certs.d/$secure/ca.crt"
    # By a variable, for the user, for the site; alice's own file is hers alone.
    ok as alice env SSL_CERT_FILE=/home/alice/ca.pem skiff pull --quiet $image
    ok as alice skiff rmi $image
    for dir in $own/certs.d /etc/containers/certs.d /etc/docker/certs.d; do
        case $dir in $own/*) owner=alice mode=600 ;; *) owner=root mode=644 ;; esac
        install -d -o $owner $dir $dir/$secure
        install -m $mode -o $owner "$images_tmp/ca.pem" $dir/$secure/ca.crt
        ok as alice skiff pull --quiet $image
        ok as alice skiff rmi $image
        rm -r $dir/$secure
        fails 125 as alice skiff pull --quiet $image
    done
    # By the system's own authorities: what `update-ca-certificates` makes of what the administrator adds.
    mount --bind "$images_tmp/ca.pem" /etc/ssl/certs/ca-certificates.crt
    try as alice skiff pull --quiet $image
    umount /etc/ssl/certs/ca-certificates.crt
    equal "$code" 0 "a pull by the system's authorities: $err"
    ok as alice skiff rmi $image
done
