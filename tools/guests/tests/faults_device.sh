# shellcheck shell=bash disable=SC2119 # options of `serve` are seldom needed
# guests: 2
# ci: no
# limit_s: 240
# bins: onesided-server
# tests: onesided/faults
# The RDMA device is removed in mid-load, on the client's host and on the server's: whoever prefers
# RDMA goes on over tcp with one warning; whoever requires it hears why not, and goes on when the
# device is back. Linux' soft-RoCE is gone only when the processes that used it are: they are ended
# before the device returns.
. tools/guests/lib.sh
. tools/guests/faults.sh

# fell_back NAME: one warning that says why, and answers over tcp.
fell_back() {
    local warnings
    warnings=$(grep -c 'a better fabric cannot be used' "/tmp/load.$1.err" || true)
    [ "$warnings" = 1 ] || { cat "/tmp/load.$1.err"; fail "$1: $warnings warnings of the fallback"; }
    say "$1: $(grep 'a better fabric' "/tmp/load.$1.err" | sed 's/.*reasons=//' | cut -c -200)"
    end_load "$1"
    [ "$(of_load "$1" 'done' fabric)" = tcp ] || fail "$1: not over tcp"
}
over_tcp() { grep -q 'connected again fabric="tcp"' "/tmp/load.$1.err"; }
must_be_over_verbs() { [ "$(of_load "$1" ready fabric)" = verbs ] || fail "$1: not over verbs"; }

# Returns when the device is really gone; it is taken from everybody at once.
begin_rdma_del() { rdma_del & deleting=$!; }

if [ "$HOST_ID" = 1 ]; then
    serve
    barrier server 120
    await remove 200
    begin_rdma_del
    tell removed
    await add 200
    stop_server
    wait $deleting
    rdma_add
    serve
    tell added
    await over 200
    stop_server
else
    barrier server 120
    load may
    must_be_over_verbs may
    from=$(now_ms)
    begin_rdma_del
    within 60 over_tcp may
    say "may: over tcp $(($(now_ms) - from)) ms after the device of its host was removed"
    sleep 2
    fell_back may
    wait $deleting
    rdma_add

    load may2 FAULT_RESTARTS=1
    must_be_over_verbs may2
    load must FAULT_RDMA=require FAULT_RESTARTS=1
    before=$(gaps must)
    tell remove
    await removed 60
    from=$(now_ms)
    within 60 over_tcp may2
    say "may2: over tcp $(($(now_ms) - from)) ms after the device of the server's host was removed"
    sleep 2
    fell_back may2
    tell add
    await added 60
    from=$(now_ms)
    [ "$(gaps must)" -gt "$before" ] || after_gap must "$before"
    say "must: right answers $(($(now_ms) - from)) ms after the server was back with its device"
    sleep 2
    end_load must
    [ "$(of_load must 'done' fabric)" = verbs ] || fail "must: not over verbs"
    say "must: meanwhile $(of_load must 'done' last_error | cut -c -200)"
    tell over
fi
none_left
