# One side of tests/vm/kernels, as root on a virtual machine:
#
#     other-kernel.sh prepare
#     other-kernel.sh save [NAME...]   starts programs, ten side by side (or each of these alone), and saves them to /home/alice/exported
#     other-kernel.sh restore          makes what is there again, has it go on and prints `NAMES<tab>right|wrong|refused<tab>WHY`
set -euo pipefail
tests=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
corpus=/home/alice/programs exported=/home/alice/exported
# Without KVM all takes ten times as long.
patience=120
# What needs more than the image has: a server of the host's, a place to write to, other instances, or files outside that the other machine has not.
elsewhere='postgresql tcp-daemon host-file outside-base outside-grows outside-log directory-stream-home'
# What keeps an emulated machine busy by itself.
alone='threads threads-many children-many'

alice() { runuser -u alice -- env -C /home/alice HOME=/home/alice USER=alice LOGNAME=alice "$@"; }
output() { tail -n 1 "/home/alice/.local/share/skiff/instance/$1/output" 2>&-; }
says() { # NAME WORD
    local end=$((SECONDS + patience)) text
    while [ $SECONDS -lt $end ]; do
        text=$(output "$1" || true)
        case $text in
        "$2"*) return 0 ;;
        right* | wrong*) return 1 ;;
        esac
        sleep 0.2
    done
    return 1
}

prepare() {
    /usr/local/libexec/skiff/make-store >&2
    cp -r "$tests/programs" $corpus
    chown -R alice: $corpus /home/alice/corpus.tar
    # A restore finds the image and the home as they are on the other side.
    alice skiff import ./corpus.tar >&2
    chmod 755 /home/alice
}

# Those that are right where one kernel saves and restores them.
programs() { # NAMES... -> lines of a file and the names of those that run side by side
    local file name names
    for file in memory ipc files clocks processes; do
        names=()
        while IFS=$'\t' read -r name _; do
            [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
            ! [[ " $elsewhere " == *" $name "* ]] && grep -q "^$name"$'\tright' $corpus/verdicts || continue
            if [ $# = 0 ] && ! [[ " $alone " == *" $name "* ]]; then names+=("$name"); else echo "$file $name"; fi
        done < <(PYTHONDONTWRITEBYTECODE=1 python3 "$corpus/$file.py")
        [ ${#names[@]} = 0 ] || printf '%s\n' "${names[@]}" | xargs -n 10 echo "$file"
    done
}

ended() { # INSTANCE
    alice skiff instance rm --force "$1" >/dev/null 2>&1 || true
    alice skiff checkpoint delete "$1" >/dev/null 2>&1 || true
}

saved() { # FILE NAMES...: those in the instance of the first one's name, side by side
    local file=$1 name=$2 names
    shift
    names=$(IFS=,; echo "$*")
    mkdir "$exported/$name"
    echo "$*" >"$exported/$name/names"
    for name; do rm -rf "$corpus/$name".*; done
    name=$1
    rm -f "$corpus/as-$name.go" "/home/alice/$name.saved"
    alice skiff instance start --checkpoint --net none ./corpus.tar "$name" python3 "$corpus/$file.py" "$names" $corpus "as-$name" &&
        says "$name" ready && alice skiff checkpoint save "$name" && alice skiff checkpoint export "$name" "/home/alice/$name.saved" || return 1
    mv "/home/alice/$name.saved" "$exported/$name/checkpoint"
    # What they have in the home goes along, as if both machines had it from one server.
    install -d -o alice -g alice "$exported/$name/home"
    for name; do find $corpus -maxdepth 1 -name "$name.*" -exec cp -a {} "$exported/$1/home" \;; done
}

save() { # NAMES...
    local words
    rm -rf $exported
    mkdir $exported
    while read -ra words <&4; do
        if ! saved "${words[@]}" >log 2>&1; then
            printf '%s\tnot saved\t%s %s\n' "${words[*]:1}" "$(output "${words[1]}" || true)" "$(grep -v ^hint: log | tail -n 1)"
            rm -rf "$exported/${words[1]}"
        fi
        ended "${words[1]}"
    done 4< <(programs "$@")
}

restore() {
    local dir name verdict why wrong=0
    for dir in "$exported"/*; do
        name=${dir##*/} verdict=refused
        cp -a "$dir/home/." $corpus
        rm -f "$corpus/as-$name.go"
        if alice skiff checkpoint import "$dir/checkpoint" >log 2>&1 && alice skiff checkpoint restore "$name" >>log 2>&1; then
            alice touch "$corpus/as-$name.go"
            if says "$name" right; then verdict=right; else verdict=wrong wrong=1; fi
            why=$(output "$name" || true)
        else
            why=$(grep -v ^hint: log | tail -n 1)
        fi
        printf '%s\t%s\t%s\n' "$(cat "$dir/names")" "$verdict" "$why"
        ended "$name"
    done
    return $wrong
}

cd "$(mktemp -d)"
"$@"
