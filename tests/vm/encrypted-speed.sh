# How fast one TCP connection between two nodes is on an encrypted network, by the kernel's WireGuard, and on one that is not: three times each, in turn.
. "$(dirname "$0")/../lib.sh"
dir=/etc/skiff/networks.d
modprobe wireguard || skip 'the kernel has no WireGuard'
cleanup() {
    rm -rf $dir
    for node in n1 n2; do
        on $node skiff sweep >/dev/null 2>&1 || true
        on $node ip link property del dev "e-$node" altname uplink 2>&- || true
    done
}
trap cleanup EXIT
mkdir -p $dir
for node in n1 n2; do on $node ip link property add dev e-$node altname uplink; done
network() { # NAME ID THIRD-BYTE LINE
    printf 'kind = "vxlan"\nparent = "uplink"\nid = %s\nsubnet = "10.%s.0.0/16"\n%s\n[nodes]\n' "$2" "$3" "$4" >$dir/$1.toml
    for node in n1 n2; do
        printf '%s = { range = "10.%s.%s.0/28", address = "%s" }\n' $node "$3" ${node#n} \
            "$(on $node ip -o -4 addr show "e-$node" | awk '{print $4}' | cut -d/ -f1)" >>$dir/$1.toml
    done
}
network plain 90 50 ''
network sec 91 51 'encrypt = true'
measure() { # NETWORK THIRD-BYTE -> bits per second
    login alice
    on n1 "${login[@]}" skiff run --net "$1" -- iperf3 -s -1 --forceflush >server.log 2>&1 3>&- &
    server=$!
    eventually 10 grep -q listening server.log
    at n2 alice skiff run --net "$1" -- iperf3 -c "10.$2.1.0" -t 4 -J >result.json
    wait $server
    python3 -c 'import json; print(round(json.load(open("result.json"))["end"]["sum_received"]["bits_per_second"] / 1e6))'
}
for _ in 1 2 3; do echo "$(measure plain 50) $(measure sec 51)"; done | tee pairs
python3 -c '
import statistics
pairs = [tuple(map(float, line.split())) for line in open("pairs")]
plain, sealed = zip(*pairs)
print(f"Mbit/s: plain {statistics.median(plain):.0f}, encrypted {statistics.median(sealed):.0f}; ratio {statistics.median(s / p for p, s in pairs):.2f} ({min(s / p for p, s in pairs):.2f} to {max(s / p for p, s in pairs):.2f})")'
