# shellcheck shell=bash
# What rank.sh and stop.sh share: the folder $LMS3D_RANKS, in which ranks of this machine register, one file each.
#
#   RANK.pid    "PID START": the process, and when it started, in ticks since boot. Process numbers are reused; the start
#               time keeps another process from being taken for the rank.
#
# Other users may write to the folder's parent (/tmp) and may have planted something there: a link, a folder of their own.

: "${LMS3D_RANKS:?LMS3D_RANKS is not set; expected a folder on this machine, for this job alone (mktemp -d)}"

private() { # 0 if the folder is this user's, and closed to others; else 2, and one line
    if [[ ! -L $LMS3D_RANKS && -d $LMS3D_RANKS && -O $LMS3D_RANKS && $(stat -c %a -- "$LMS3D_RANKS") == *700 ]]; then
        return 0
    fi
    echo "${0##*/}: LMS3D_RANKS=$LMS3D_RANKS: expected a folder of $(id -un) with mode 700 and no link, found" \
        "$(stat -c '%F of %U with mode %a' -- "$LMS3D_RANKS" 2>&1); name another one" >&2
    return 2
}

started() { # PID -> when it started; nothing if there is no such process
    local stat
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
    read -ra stat <<<"${stat##*) }" # the name before it may hold anything
    echo "${stat[19]}"
}

alive() { # the registered processes that still run
    local file pid start
    for file in "$LMS3D_RANKS"/*.pid; do
        [[ -f $file && ! -L $file && -O $file ]] || continue
        read -r pid start <"$file" || continue
        if [[ $pid =~ ^[1-9][0-9]*$ && -n $start && $(started "$pid") == "$start" && -O /proc/$pid ]]; then
            echo "$pid"
        fi
    done
}
