#!/usr/bin/env bash
# stop.sh [SECONDS]: asks the run whose ranks are on this machine to save and stop, and waits for at most SECONDS
# (default: 0).
#
# It signals one rank only: ranks agree after every step, so that all stop after the same one. It signals once: a second
# signal would mean "quit without saving".
set -euo pipefail

# shellcheck source=deploy/ranks.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/ranks.sh"
patience=${1:-0}

[[ -e $LMS3D_RANKS || -L $LMS3D_RANKS ]] || exit 0 # nothing was started here
private
read -r first < <(alive) || exit 0 # nothing runs here
if mkdir -- "$LMS3D_RANKS/asked" 2>/dev/null; then
    kill -TERM "$first"
fi
while ((SECONDS < patience)) && [[ -n $(alive) ]]; do
    sleep 1
done
