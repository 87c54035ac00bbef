# shellcheck shell=bash
# For scripts in guests, after lib.sh: the raw device's figures, by perftest.

reads=500

_read_lat() { ib_read_lat -d rxe0 -F -s 64 -n $reads "$@" >"/tmp/read_lat.$$" 2>&1; }

# read_lat_server [-R]: serves one read_lat.
read_lat_server() { ib_read_lat -d rxe0 -F -s 64 -n $reads "$@" >/dev/null 2>&1; }

# read_lat TITLE SERVER_IP [-R]: says the latency of READs of 64 bytes; read_p50_us is the median.
read_lat() {
    local title=$1 out
    shift
    within 20 _read_lat "$@" # the server may not listen yet
    out=$(awk '$1 == 64 { print "p50", $5, "us, p99", $8, "us" }' "/tmp/read_lat.$$")
    [ -n "$out" ] || { cat "/tmp/read_lat.$$"; fail "ib_read_lat printed no latency"; }
    # shellcheck disable=SC2034 # for the caller
    read_p50_us=$(awk '$1 == 64 { print int($5) }' "/tmp/read_lat.$$")
    say "READ of 64 bytes, $title: $out"
}
