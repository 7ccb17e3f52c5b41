# Sourced by every test: runs a program plain and paged, and compares the output.
#
#   SPILLWAY   the command under test (default: the release build); "plain" runs everything unpaged,
#              which checks the tests themselves
#   LAB_SIZE   full (default) or ci: smaller sizes, for two cores
set -uo pipefail

LAB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SPILLWAY=${SPILLWAY:-$LAB/../target/release/spillway}
LAB_SIZE=${LAB_SIZE:-full}
BUILT=$LAB/cache/bin
WORK=$(mktemp -d "${TMPDIR:-/tmp}/spillway-lab.XXXXXX")
chmod 755 "$WORK"
STATS=$WORK/stats.json
trap finish EXIT
trap 'exit 143' TERM # a time limit

finish() {
    local job
    for job in $(jobs -p); do
        kill -9 "$job" 2>/dev/null
        wait "$job" 2>/dev/null
    done
    rm -rf "$WORK"
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# by_size FULL CI: prints the value for LAB_SIZE.
by_size() {
    [ "$LAB_SIZE" = ci ] && echo "$2" || echo "$1"
}

# paged LOCAL PROGRAM...: runs PROGRAM under spillway; statistics go to $STATS.
# SPILLWAY_OPTIONS, an array, adds options.
paged() {
    local size=$1
    shift
    if [ "$SPILLWAY" = plain ]; then
        "$@"
    else
        "$SPILLWAY" run --local "$size" --stats "$STATS" "${SPILLWAY_OPTIONS[@]}" -- "$@"
    fi
}
SPILLWAY_OPTIONS=()

# statistic PATH: prints a number of the last paged run, such as counters.fetches.
statistic() {
    /usr/bin/python3 -c 'import functools, json, sys
print(functools.reduce(dict.__getitem__, sys.argv[2].split("."), json.load(open(sys.argv[1]))))' "$STATS" "$1"
}

# went_far PAGES: fails unless at least PAGES pages left local memory in the last paged run.
went_far() {
    [ "$SPILLWAY" = plain ] && return
    local evictions
    evictions=$(statistic counters.evictions) || fail "no statistics"
    echo "evictions $evictions, fetches $(statistic counters.fetches)"
    [ "$evictions" -ge "$1" ] || fail "only $evictions pages went far, expected $1"
}

# same_output LOCAL PROGRAM...: fails unless the plain and the paged run exit with 0 and print the same.
# Reads the output to its end, so that output of daemonized children counts.
same_output() {
    local size=$1 plain paged
    shift
    "$@" </dev/null | cat >"$WORK/plain.out"
    plain=${PIPESTATUS[0]}
    [ "$plain" = 0 ] || fail "the plain run ended with $plain"
    [ -s "$WORK/plain.out" ] || fail "the plain run printed nothing"
    paged "$size" "$@" </dev/null | cat >"$WORK/paged.out"
    paged=${PIPESTATUS[0]}
    [ "$paged" = "$plain" ] || fail "ended with $paged, plain with $plain"
    cmp "$WORK/plain.out" "$WORK/paged.out" || fail "the output differs from the plain run's"
}

# quarter PROGRAM...: runs it plain, then within a quarter of the plain run's peak. Fails unless the
# output is equal and a quarter of the peak went far.
quarter() {
    local peak paged
    "$BUILT/peak" "$WORK/peak" "$@" >"$WORK/plain.out" </dev/null || fail "the plain run failed"
    [ -s "$WORK/plain.out" ] || fail "the plain run printed nothing"
    peak=$(cat "$WORK/peak")
    echo "peak $((peak / 1024)) MiB, local $((peak / 4096)) MiB"
    paged "$((peak / 4096))M" "$@" >"$WORK/paged.out" </dev/null
    paged=$?
    [ $paged = 0 ] || fail "ended with $paged, plain with 0"
    cmp "$WORK/plain.out" "$WORK/paged.out" || fail "the output differs from the plain run's"
    went_far $((peak / 16))
}

# until_true SECONDS COMMAND...: repeats COMMAND until it succeeds, for at most SECONDS.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}
