# Names that are not taken, and environments that are not there: said so with a hint by each command, and nothing is made.
. "$(dirname "$0")/../lib.sh"
state=/home/alice/.local/share/skiff

for name in .. . ../x a/b /etc -x .hidden 'a b' $'a\nb' '' none ü "$(printf 'x%.0s' {1..65})" '%u' '*' 'a;b'; do
    for command in 'env create' 'env enter' 'env exec' 'env diff' 'env refresh' 'env snapshot' 'env stop' 'env rm' stop; do
        words=($command -- "$name")
        [ "$command" != 'env exec' ] || words+=(true)
        fails 125 as alice skiff "${words[@]}"
        [[ $err == 'skiff: '* || $err == 'error: '* ]] || fail "$command $name: $err"
    done
done
for command in 'env enter' 'env exec' 'env diff' 'env refresh' 'env snapshot' 'env stop' 'env rm'; do
    words=($command nosuch)
    [ "$command" != 'env exec' ] || words+=(true)
    fails 125 as alice skiff "${words[@]}" </dev/null
    has "$err" 'skiff: environment nosuch: there is no such environment'
    has "$err" 'hint: there are none yet; `skiff env create nosuch` makes it'
done
# Of whatever has a name.
for words in 'stop nosuch' 'rm nosuch' 'kill nosuch' 'logs nosuch' 'exec nosuch true'; do
    fails 125 as alice skiff $words
    has "$err" 'nosuch: there is no '
    has "$err" 'hint: '
done
[ ! -e $state ] || equal "$(find $state/env -mindepth 1 2>/dev/null)" '' 'what was made'

# Some of several: the others are gone, the wrong one is named.
ok as alice skiff env create one
ok as alice skiff env create two
fails 125 as alice skiff env rm one nosuch two
has "$err" nosuch
has "$err" 'there are: two'
equal "$(as alice skiff env list --json)" '[]' 'environments that are left'

# A directory that is no environment, or a spoilt one.
ok as alice mkdir $state/env/empty
fails 125 as alice skiff env exec empty -- true
ok as alice skiff env create spoilt
echo 'name = [' >$state/env/spoilt/env.toml
fails 125 as alice skiff env exec spoilt -- true
has "$err" "$state/env/spoilt/env.toml"
fails 125 as alice skiff env create x --base
fails 125 as alice skiff env create x --base nosuch
has "$err" 'base "nosuch": not known'
has "$err" 'hint: '
[ ! -e $state/env/x ] || fail 'an environment over an unknown base was made'
ok as alice skiff env rm --force spoilt
