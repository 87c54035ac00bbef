# shellcheck shell=bash
# guests: 2
# ci: yes
# limit_s: 420
# bins: onesided-server
# tests: onesided/processes
# tests: onesided/torn_reads
# tests: onesided/real_input
# Two hosts: a server on one; on the other histories of many processes, which must be linearizable
# while clients are killed, a source tree that is read back whole, and values that are overwritten
# on the server's host all the while, of which no torn one is accepted.
. tools/guests/lib.sh

export ONESIDED_TEST_FABRIC=verbs
declare -A torn_port=([auto]=7421 [aggressive]=7422)

# overwrites CLEANING: a server whose values are overwritten until the other host has read enough.
overwrites() {
    local role='{"Write":{"listen":"0.0.0.0:'${torn_port[$1]}'","cleaning":"'$1'"}}'
    await "read.$1" 200 |
        ONESIDED_TEST_ROLE=$role "$TESTS/onesided/torn_reads" child --exact --nocapture
}
# suite NAME PERCENT TESTS...
suite() {
    local from=$SECONDS name=$1 percent=$2
    shift 2
    ONESIDED_TEST_PERCENT=$percent "$TESTS/onesided/$name" --nocapture --test-threads=1 "$@"
    say "$name $*, $percent % of the work of a test on the host: $((SECONDS - from)) s"
}
# torn CLEANING TESTS...: reads what the other host overwrites.
torn() {
    local cleaning=$1 port=${torn_port[$1]}
    shift
    within 60 bash -c "exec 3<>/dev/tcp/10.77.0.1/$port" 2>/dev/null
    ONESIDED_TEST_SERVER=10.77.0.1:$port suite torn_reads 2 "$@"
    tell "read.$cleaning"
}

if [ "$HOST_ID" = 1 ]; then
    "$BIN/onesided-server" --listen 0.0.0.0:7411 --memory 1GiB --fabric verbs --fabric tcp &
    server=$!
    await done 400
    kill "$server"
    wait "$server" || fail "the server ended with $?"
    overwrites auto
    overwrites aggressive
else
    export ONESIDED_TEST_SERVER=10.77.0.1:7411
    within 30 bash -c 'exec 3<>/dev/tcp/10.77.0.1/7411'
    suite processes 10 # enough for the index to split
    suite real_input 4
    tell done
    torn auto a_million without
    torn aggressive overwritten_and_moved
fi
for object in qp mr pd cq cm_id; do
    [ "$(rdma_count $object)" = 0 ] || fail "$object left: $(rdma resource show $object)"
done
