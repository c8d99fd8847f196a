#!/usr/bin/env bash
# stop.sh [SECONDS]: asks the run whose ranks are on this machine to save and stop; waits for that at most so long
# (default: 0).
#
# It signals one rank only: ranks compare notes after every step, so that all stop behind the same one. It does so once:
# a second signal would mean "quit without saving".
set -euo pipefail

: "${LMS3D_RANKS:?stop.sh: LMS3D_RANKS is not set; expected the folder that rank.sh was given}"
patience=${1:-0}

alive() {
    local file
    for file in "$LMS3D_RANKS"/*.pid; do
        [[ -f $file ]] && kill -0 "$(<"$file")" 2>/dev/null && cat -- "$file"
    done
    return 0
}

read -r first < <(alive) || exit 0 # nothing runs here
if mkdir -- "$LMS3D_RANKS/asked" 2>/dev/null; then
    kill -TERM "$first"
fi
while ((SECONDS < patience)) && [[ -n $(alive) ]]; do
    sleep 1
done
