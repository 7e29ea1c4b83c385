# What `skiff app` runs, wherever that is: KIND ADDRESS LAUNCHER [WORDS...]. ADDRESS is the path of a Unix socket, or a port of 127.0.0.1.
# LAUNCHER is the Python program that has websockify listen on such a socket. The token is in JUPYTER_TOKEN, as everybody can read a
# program's arguments.
kind=$1 address=$2 launcher=$3
shift 3
fail() { echo "skiff: $1" >&2; echo "hint: $2" >&2; exit 127; }
first() { for name; do command -v "$name" && return; done; }

# Whoever has started us holds the other end of our standard input; when he is gone, however he went, all goes.
exec 3<&0 </dev/null
started=
run() { "$@" 3<&- & started="$started $!"; }
end() {
    kill $started 2>/dev/null
    [ -z "${dir:-}" ] || rm -rf "$dir"
    case $address in /*) rm -f "$address" ;; esac
}
trap end EXIT
trap 'exit 143' TERM INT HUP
watched() { # waits for the last one started, and ends the rest with it
    last=$!
    { cat <&3 >/dev/null; kill $started $$; } 2>/dev/null &
    watchdog=$!
    exec 3<&-
    wait $last
    code=$?
    kill $watchdog 2>/dev/null
    exit $code
}

notebook() {
    jupyter=$(first jupyter-lab jupyter-notebook jupyter-server)
    [ -n "$jupyter" ] || fail 'no Jupyter here' 'in an environment of yours: pip install jupyterlab; or an image that has it'
    case $address in
    # With a socket Jupyter refuses any port but its default, which a configuration file or a variable may have changed.
    /*) set -- --sock="$address" --port=8888 "$@" ;;
    *) set -- --ip=127.0.0.1 --port="$address" --port-retries=0 "$@" ;;
    esac
    run "$jupyter" --no-browser --allow-root -y "$@"
    watched
}

desktop() {
    xvnc=$(first Xtigervnc Xvnc) proxy=$(first websockify) session=$(first x-session-manager startxfce4 icewm-session openbox-session xterm)
    for novnc in /usr/share/novnc /usr/share/webapps/novnc /opt/novnc ''; do [ ! -e "$novnc/vnc.html" ] || break; done
    [ -n "$xvnc" ] && [ -n "$proxy" ] && [ -n "$novnc" ] ||
        fail 'Xvnc, websockify or noVNC is not here' 'in an environment of yours: apt-get install tigervnc-standalone-server websockify novnc'
    [ -n "$session" ] || [ $# != 0 ] || fail 'no desktop here' 'in an environment of yours: apt-get install xfce4; or name a program behind --'
    dir=$(mktemp -d) || exit 125
    # A cookie for whoever asks: entries of any host and any display.
    printf '\377\377\000\000\000\000\000\022MIT-MAGIC-COOKIE-1\000\020' >"$dir/cookie" && head -c 16 /dev/urandom >>"$dir/cookie"
    echo "$JUPYTER_TOKEN: unix_socket:$dir/vnc" >"$dir/token"
    unset JUPYTER_TOKEN
    # Nothing listens but a socket in a directory of ours, and the display's, which wants the cookie.
    run "$xvnc" -displayfd 4 -auth "$dir/cookie" -rfbunixpath "$dir/vnc" -rfbunixmode 0600 -rfbport -1 -SecurityTypes None -nolisten tcp \
        -geometry 1280x800 -depth 24 -desktop skiff 4>"$dir/display" >"$dir/log" 2>&1
    until [ -s "$dir/display" ]; do
        kill -0 $! 2>/dev/null || { cat "$dir/log" >&2; fail 'Xvnc does not start' 'it says why, above'; }
        sleep 0.05
    done
    read -r display <"$dir/display"
    # It answers nobody without the token.
    case $address in
    /*) # By the Python that websockify is installed for: the first line of its program names it.
        read -r python <"$proxy"
        case $python in '#!'*python*) python=${python#'#!'} ;; *) python=python3 ;; esac
        run $python -c "$launcher" "$address" --web="$novnc" --token-plugin TokenFile --token-source "$dir/token" >"$dir/proxy" 2>&1 ;;
    *) run "$proxy" --web="$novnc" --token-plugin TokenFile --token-source "$dir/token" "127.0.0.1:$address" >"$dir/proxy" 2>&1 ;;
    esac
    [ $# != 0 ] || set -- "$session"
    export DISPLAY=":$display" XAUTHORITY="$dir/cookie"
    run "$@"
    watched
}

"$kind" "$@"
