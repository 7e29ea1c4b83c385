# A bundle of alice's in ~/bundle: busybox, and a configuration that her own runtime has written.
bundle=/home/alice/bundle

make_bundle() {
    as alice mkdir -p $bundle/rootfs/bin $bundle/rootfs/etc $bundle/rootfs/data
    cp /bin/busybox $bundle/rootfs/bin/busybox
    for command in sh ls cat id mount true sleep echo ps touch kill env hostname stat test readlink stty head tr grep wc tty; do
        ln -sf busybox "$bundle/rootfs/bin/$command"
    done
    echo 'root:x:0:0::/root:/bin/sh' >$bundle/rootfs/etc/passwd
    as alice skiff-oci spec -b $bundle
    chown -R alice: $bundle
    cp $bundle/config.json $bundle/../config.usual
    configure 'c["process"].update(terminal=False)'
    cp $bundle/config.json $bundle/../config.usual
}

configure() { # PYTHON: changes the usual configuration, called `c`
    /usr/bin/python3 - "$bundle/../config.usual" $bundle/config.json "$1" <<'PYTHON'
import json, sys
usual, new, script = sys.argv[1:]
c = json.load(open(usual))
linux, process = c["linux"], c["process"]
exec(script)
json.dump(c, open(new, "w"))
PYTHON
}

script() { # SCRIPT [PYTHON]: a configuration that runs a shell script
    configure "process['args'] = ['sh', '-c', '''$1''']
${2:-}"
}

run() { # OPTION...: runs the bundle; sets code, out, err
    try as alice skiff-oci --debug run -b $bundle "$@" box
}

state() { json "$(as alice skiff-oci state "$1")" 'd["status"]'; }
