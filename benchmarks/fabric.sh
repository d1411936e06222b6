#!/bin/sh
# Hosts from network namespaces with rate-limited links, one replaying rank a host:
# see fabric.py.  Options are its own.  Whatever ends it, the namespaces are removed.
set -u
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
MOETRAFFIC_NETNS="moetraffic$$"
export MOETRAFFIC_NETNS

clean() {
    ip netns list 2>/dev/null | awk -v own="$MOETRAFFIC_NETNS" \
        'index($1, own) == 1 { print $1 }' |
        while read -r name; do ip netns del "$name"; done
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

python=${PYTHON:-python3}
"$python" -c 'import numpy, moetraffic' 2>/dev/null || {
    echo "$python cannot import numpy and moetraffic: run it with the Python" \
        "of the environment that has them: sudo PYTHON=\$PWD/.venv/bin/python $0" >&2
    exit 2
}
"$python" "$here/fabric.py" "$@" &
child=$!
trap 'kill "$child" 2>/dev/null; wait "$child"; exit 143' TERM INT
wait "$child"
