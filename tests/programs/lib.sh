# Moves the programs of the corpus, and judges what comes of it. `. "$here/../programs/lib.sh"` after lib.sh.
#
#     judge WAY [NAME]   each program (or the one) by WAY, a function below; fails unless each is right or refused beforehand
#
# What each did stands in $corpus/table, a line with file, name, verdict and reason each, separated by tabs.

# What no checkpoint keeps, as docs/checkpoints.md says.
not_kept=' accounting session-keyring directory-notify '
corpus=/home/alice/corpus
cp -r "$here/../programs" /shared/programs
as alice mkdir -p $corpus

instance_says() { # NAME: the last line of its output
    tail -n 1 "/home/alice/.local/share/skiff/instance/$1/output" 2>/dev/null || true
}

says() { # NAME LINE SECONDS
    local i
    for ((i = 0; i < $3 * 20 * slowness; i++)); do
        case $(instance_says "$1") in
        $2*) return 0 ;;
        right* | wrong*) return 1 ;;
        esac
        sleep 0.05
    done
    return 1
}

# Of one that waits to be moved: whether it is refused beforehand, in the same words by both.
refused() { # NAME -> reason
    local code=0 text
    text=$(as alice skiff checkpoint save --dry-run "$1" 2>&1) || code=$?
    [ $code != 0 ] || return 1
    reason=$(sed -n 's/^in the way *//p' <<<"$text" | sort -u | head -n 1)
    [ $code = 1 ] && [ -n "$reason" ] || reason="wrong: --dry-run ends with $code: $text"
    if text=$(as alice skiff checkpoint save "$1" 2>&1); then reason='wrong: refused by --dry-run, and saved'; fi
}

saved_and_restored() { # NAME
    as alice skiff checkpoint save "$1" 2>&1 && as alice skiff instance rm "$1" 2>&1 && as alice skiff checkpoint restore "$1" 2>&1
}

row() { # WAY FILE NAME OPTIONS
    local way=$1 file=$2 name=$3 options=${4:-} verdict reason='' text
    # On a host that has been up for longer than the one where it is restored.
    login alice
    try timeout 60 unshare -T -f --monotonic 1000000 --boottime 1000000 "${login[@]}" \
        skiff instance start --checkpoint $options host "$name" python3 "/shared/programs/$file" "$name" $corpus
    [ "$code" = 0 ] || { verdict=unjudged reason=$err; }
    if [ -n "${verdict:-}" ]; then :
    elif ! says "$name" ready 20; then
        verdict=unjudged reason=$(instance_says "$name")
    elif refused "$name"; then
        verdict=refused
        [[ $reason != wrong:* ]] || verdict=wrong
    elif ! text=$($way "$name" </dev/null); then
        verdict=late reason=$(grep -v '^hint:' <<<"$text" | tail -n 1 | cut -c 1-300)
        # What only CRIU sees is refused once all is stopped, in our words.
        [[ $text != *'it cannot be saved: process'* ]] || verdict='refused as it stops'
    else
        verdict=moved
    fi
    touch "$corpus/$name.go"
    if [ "$verdict" = moved ] || [[ $verdict = refused* ]]; then
        if says "$name" right 25; then
            [ "$verdict" != moved ] || verdict=right
        else
            verdict=wrong reason="$reason $(instance_says "$name")"
            [[ $not_kept != *" $name "* ]] || verdict='not kept'
        fi
    fi
    as alice skiff instance rm --force "$name" >/dev/null 2>&1 || true
    as alice skiff checkpoint delete "$name" >/dev/null 2>&1 || true
    printf '%s\t%s\t%s\t%s\n' "$file" "$name" "$verdict" "${reason//$'\n'/ }" >>$corpus/table
}

judge() { # WAY [NAME]
    local way=$1 only=${2:-} file name about options rows=()
    for file in memory ipc files clocks processes; do
        while IFS=$'\t' read -r name about; do
            [ -z "$only" ] || [[ " $only " == *" $name "* ]] || continue
            options=
            # Connections on the host's network stand in the way; what is tried is the connection.
            [[ $name != tcp* && $name != udp* ]] || options='--net none'
            rows+=("$file.py $name $options")
        done < <(PYTHONDONTWRITEBYTECODE=1 python3 "/shared/programs/$file.py")
    done
    [ ${#rows[@]} != 0 ] || fail "no such program: $only"
    : >$corpus/table
    local i lanes=3 lane
    for ((lane = 0; lane < lanes; lane++)); do
        for ((i = lane; i < ${#rows[@]}; i += lanes)); do
            set -- ${rows[i]}
            row $way "$1" "$2" "${*:3}"
        done &
    done
    wait
    sort $corpus/table
    equal "$(cut -f 2 $corpus/table | wc -l)" ${#rows[@]} 'programs judged'
    equal "$(awk -F '\t' '$3 != "right" && $3 !~ /^refused/ && $3 != "not kept" { print $2 ": " $3 ": " $4 }' $corpus/table)" '' 'neither right nor refused beforehand'
}
