# Moves the programs of the corpus, and judges what comes of it. `. "$here/../programs/lib.sh"` after lib.sh.
#
#     judge WAY [NAMES]           each program (or those) by WAY, a function below, alone in an instance
#     judge_together WAY [NAMES]  the same of those that are right in `verdicts`, those of a file side by side in one instance; where one is not
#                                 right, each of them alone
#     over_image [NODES]          has all of them run over an image instead of the host, with a root that takes no changes. The image is unpacked here, or
#                                 on these nodes, before: no program waits for that
#     verdicts                    fails unless each that was judged is right or refused beforehand, or loses only what the user is told of
#
# What each did stands in $corpus/table, a line with file, name, way, verdict and reason each, separated by tabs.
#
# `where` is the node where the program is; empty is the login node, where its home is.

# What no checkpoint keeps, and in which words that is said when it is saved or moved.
declare -A announced=(
    [accounting]='processor time used so far'
    [own-keyring]='of yours on this host has keys'
    [autogroup]='nice value of its session'
    [merged-all]='may be merged'
    [locked-on-fault]='locked whole'
    [directory-stream]='names may be missed'
    [unix-peer]='SO_PEERCRED'
)
corpus=/home/alice/corpus
programs=$corpus/programs
# What instances have as their root.
over=host
as alice mkdir -p $corpus
cp -r "$here/../programs" $programs
chown -R alice: $programs
: >$corpus/table

over_image() { # [NODES]
    local where limit=300
    over=$corpus/image.tar
    "$here/../programs/image" >$over
    chown alice: $over
    for where in "${@:-}"; do ok run_where skiff run $over true; done
}

run_where() { # CMD...: as alice, where the program is
    if [ -n "$where" ]; then at "$where" alice "$@"; else as alice "$@"; fi
}

instance_says() { # NAME: the last line of its output
    if [ -n "$where" ]; then
        on "$where" tail -n 1 "/tmp/skiff-alice/instance/$1/output" 2>/dev/null || true
    else
        tail -n 1 "/home/alice/.local/share/skiff/instance/$1/output" 2>/dev/null || true
    fi
}

says() { # NAME LINE SECONDS
    local end=$((SECONDS + $3 * slowness))
    while [ $SECONDS -lt $end ]; do
        case $(instance_says "$1") in
        $2*) return 0 ;;
        right* | wrong*) return 1 ;;
        esac
        sleep 0.05
    done
    return 1
}

# Of one that waits to be moved: whether it is refused beforehand, in the same words by both.
refused() { # WAY NAME -> reason
    local code=0 text dry=(checkpoint save --dry-run "$2") real=(checkpoint save "$2")
    [[ $1 != migrated* ]] || dry=(migrate --dry-run "$2" n2) real=(migrate "$2" n2)
    text=$(run_where skiff "${dry[@]}" 2>&1) || code=$?
    [ $code != 0 ] || return 1
    reason=$(sed -n 's/^in the way *//p' <<<"$text" | sort -u | head -n 1)
    [ $code = 1 ] && [ -n "$reason" ] || reason="wrong: --dry-run ends with $code: $text"
    if text=$(run_where skiff "${real[@]}" 2>&1); then reason='wrong: refused by --dry-run, and not in earnest'; fi
}

# ---- Ways. Each leaves the program where it says, and prints what was said. ------------------------------------------------

saved_and_restored() { # NAME
    run_where skiff checkpoint save "$1" && run_where skiff instance rm "$1" && run_where skiff checkpoint restore "$1"
}
restored_elsewhere() {
    run_where skiff checkpoint save "$1" && run_where skiff instance rm "$1" && elsewhere && run_where skiff checkpoint restore "$1"
}
# What was left running is ended by force before the second checkpoint is restored.
left_running_twice() {
    run_where skiff checkpoint save --leave-running "$1" && run_where skiff checkpoint save --leave-running "$1" &&
        run_where skiff instance rm --force "$1" && run_where skiff checkpoint restore "$1"
}
migrated() { # NAME MODE...: there and back and there, by these modes in turn
    local mode
    for mode in "${@:2}"; do
        run_where skiff migrate --mode "$mode" "$1" "$(other)" || return 1
        elsewhere
    done
}
migrated_disk() { migrated "$1" disk; }
migrated_diskless() { migrated "$1" diskless; }
migrated_precopy() { migrated "$1" precopy; }
migrated_each_way() { migrated "$1" precopy diskless disk; }
migrated_ten_times() { migrated "$1" diskless precopy disk diskless precopy disk diskless precopy disk diskless; }

other() { if [ "$where" = n1 ]; then echo n2; else echo n1; fi; }
elsewhere() { where=$(other); }

# ----------------------------------------------------------------------------------------------------------------------

begin() { # NAME OPTIONS FILE WORDS...: starts it, where clocks are ahead of those of the node that it goes to
    local words=(timeout 60 unshare -T -f --monotonic 1000000 --boottime 1000000)
    login alice
    words+=("${login[@]}" skiff instance start --checkpoint $2 "$over" "$1" python3 "$programs/$3" "${@:4}")
    if [ -n "$where" ]; then try on "$where" "${words[@]}"; else try "${words[@]}"; fi
    return $code
}

finish() { # NAME PROGRAMS...
    local node name
    for node in ${where:+n1 n2} ${where:-here}; do
        if [ "$node" = here ]; then node=; fi
        where=$node run_where skiff instance rm --force "$1" >/dev/null 2>&1 || true
    done
    as alice skiff checkpoint delete "$1" >/dev/null 2>&1 || true
    # Also what the programs have left in the home.
    for name; do rm -rf "$corpus/$name".*; done
}

by_way() { # WAY NAME -> text; leaves `where` changed
    local log
    log=$(mktemp)
    # Not in a subshell, which could not say where the program is.
    if $1 "$2" >"$log" 2>&1 </dev/null; then code=0; else code=$?; fi
    text=$(cat "$log")
    rm "$log"
    return $code
}

row() { # WAY FILE NAME OPTIONS
    local way=$1 file=$2 name=$3 verdict='' reason='' text='' where
    where=$(first_node)
    begin "$name" "${4:-}" "$file" "$name" $corpus || verdict=unjudged reason=$err
    if [ -n "$verdict" ]; then :
    elif ! says "$name" ready 60; then
        verdict=unjudged reason=$(instance_says "$name")
    elif refused "$way" "$name"; then
        verdict=refused
        [[ $reason != wrong:* ]] || verdict=wrong
    elif ! by_way "$way" "$name"; then
        verdict=late reason=$(grep -v '^hint:' <<<"$text" | tail -n 1 | cut -c 1-300)
        # What shows only when all has stopped is refused then, in our words.
        [[ $text != *'it cannot be '[sm]*'ed: process'* && $text != *'to read it may take '* ]] || verdict='refused as it stops'
    else
        verdict=moved
    fi
    touch "$corpus/$name.go"
    if [ "$verdict" = moved ] || [[ $verdict = refused* ]]; then
        if says "$name" right 25; then
            [ "$verdict" != moved ] || verdict=right
        else
            verdict=wrong reason="$reason $(instance_says "$name")"
            [[ -z ${announced[$name]:-} || $text != *"${announced[$name]}"* ]] || verdict='not kept, and said'
        fi
    fi
    finish "$name"
    tell "$file" "$name" "$way" "$verdict" "$reason"
}

tell() { # FILE NAME WAY VERDICT REASON
    printf '%s\t%s\t%s\t%s\t%s\n' "${@:1:4}" "${5//$'\n'/ }" >>$corpus/table
}

# Where there are nodes with disks of their own ($own_nodes), programs begin on the first.
first_node() { if [ -n "${own_nodes:-}" ]; then echo n1; fi; }

programs_of() { # FILE -> lines of a name and what it is about
    PYTHONDONTWRITEBYTECODE=1 python3 "$programs/$1.py"
}

judged() { # WAY NAMES...: how many of these have been; others are judged at the same time
    awk -F '\t' -v way="$1" -v names=" ${*:2} " '$3 == way && index(names, " " $2 " ")' $corpus/table | wc -l
}

judge() { # WAY [NAMES]
    local way=$1 only=${2:-} file name about options rows=() chosen=()
    for file in memory ipc files clocks processes; do
        while IFS=$'\t' read -r name about; do
            [ -z "$only" ] || [[ " $only " == *" $name "* ]] || continue
            options=
            # Connections on the host's network stand in the way; what is tried is the connection.
            [[ $name != tcp* && $name != udp* ]] || options='--net none'
            rows+=("$file.py $name $options") chosen+=("$name")
        done < <(programs_of $file)
    done
    [ ${#rows[@]} != 0 ] || fail "no such program: $only"
    local i lanes=3 lane before
    before=$(judged "$way" "${chosen[@]}")
    for ((lane = 0; lane < lanes; lane++)); do
        for ((i = lane; i < ${#rows[@]}; i += lanes)); do
            set -- ${rows[i]}
            row $way "$1" "$2" "${*:3}"
        done &
    done
    wait
    equal "$(($(judged "$way" "${chosen[@]}") - before))" ${#rows[@]} 'programs judged'
}

# One that is not right is tried alone, with all of its file.
together() { # WAY FILE NAMES...
    local way=$1 file=$2 names=("${@:3}") name=together-$2-$3 where text='' list
    where=$(first_node)
    list=$(IFS=,; echo "${names[*]}")
    # Those with connections need a network of the instance's own.
    if begin "$name" '--net none' "$file.py" "$list" $corpus "$name" && says "$name" ready 60 && by_way "$way" "$name" &&
        touch "$corpus/$name.go" && says "$name" right 60; then
        for text in "${names[@]}"; do tell "$file.py" "$text" "$way" right ''; done
        finish "$name" "${names[@]}"
        return
    fi
    echo "$way: those of $file side by side: $(instance_says "$name"): $text"
    touch "$corpus/$name.go"
    finish "$name" "${names[@]}"
    judge "$way" "${names[*]}"
}

judge_together() { # WAY [NAMES]
    local way=$1 only=${2:-} file name about names right='{ print $1 }' job jobs=() chosen=()
    # Each with how it fares when it is saved and restored, and when it is moved.
    [[ $way = migrated* ]] && right="\$3 == \"right\" $right" || right="\$2 == \"right\" $right"
    right=$(awk -F '\t' "$right" $programs/verdicts)
    for file in memory ipc files clocks processes; do
        names=()
        while IFS=$'\t' read -r name about; do
            [ -z "$only" ] || [[ " $only " == *" $name "* ]] || continue
            [[ $'\n'$right$'\n' != *$'\n'$name$'\n'* ]] || names+=("$name")
        done < <(programs_of $file)
        if [ ${#names[@]} != 0 ]; then together "$way" "$file" "${names[@]}" & jobs+=($!); fi
        chosen+=("${names[@]}")
    done
    [ ${#chosen[@]} != 0 ] || fail "no program that is right: $only"
    for job in "${jobs[@]}"; do wait "$job" || fail "$way: programs side by side: exit code $?"; done
    equal "$(judged "$way" "${chosen[@]}")" ${#chosen[@]} 'programs judged side by side'
}

verdicts() {
    sort $corpus/table
    [ -s $corpus/table ] || fail 'nothing was judged'
    equal "$(awk -F '\t' '$4 != "right" && $4 !~ /^refused/ && $4 != "not kept, and said" { print $2 " (" $3 "): " $4 ": " $5 }' $corpus/table)" '' \
        'neither right nor refused beforehand'
    # docs/checkpoint-support.md says it.
    equal "$(awk -F '\t' 'NR == FNR { saved[$1] = $2; moved[$1] = $3; next }
        ($3 ~ /^migrated/ ? moved[$2] : saved[$2]) == "right" && $4 != "right" { print $2 " (" $3 "): " $4 ": " $5 }' $programs/verdicts $corpus/table)" '' \
        'worse than it was'
}
