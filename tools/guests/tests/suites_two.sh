# shellcheck shell=bash
# guests: 2
# ci: yes
# limit_s: 420
# bins: onesided-server
# tests: onesided/processes
# tests: onesided/real_input
# Two hosts: a server on one; on the other histories of many processes, which must be linearizable
# while clients are killed, and a source tree that is read back whole.
. tools/guests/lib.sh

if [ "$HOST_ID" = 1 ]; then
    "$BIN/onesided-server" --listen 0.0.0.0:7411 --memory 1GiB --fabric verbs --fabric tcp &
    server=$!
    await done 400
    kill "$server"
    wait "$server" || fail "the server ended with $?"
else
    export ONESIDED_TEST_FABRIC=verbs ONESIDED_TEST_SERVER=10.77.0.1:7411
    within 30 bash -c 'exec 3<>/dev/tcp/10.77.0.1/7411'
    suite() {
        local from=$SECONDS
        ONESIDED_TEST_PERCENT=$2 "$TESTS/onesided/$1" --nocapture --test-threads=1
        say "$1, $2 % of the work of a test on the host: $((SECONDS - from)) s"
    }
    suite processes 10 # enough for the index to split
    suite real_input 4
    tell done
fi
for object in qp mr pd cq cm_id; do
    [ "$(rdma_count $object)" = 0 ] || fail "$object left: $(rdma resource show $object)"
done
