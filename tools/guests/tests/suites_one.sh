# shellcheck shell=bash
# guests: 1
# ci: yes
# limit_s: 420
# tests: onesided/processes
# tests: onesided/torn_reads
# tests: onesided/server_killed
# tests: onesided/real_input
# tests: onesided/registered
# tests: onesided/idle
# tests: onesided/tenants
# One host, processes apart: the suites of shared memory over the device. Histories of many
# processes are linearizable while clients are killed; torn READs are refused; clients outlive
# servers that are killed; a source tree is read back whole; large values go straight into lent
# buffers; a connection that nobody uses is closed and opened again; tenants see only their own.
. tools/guests/lib.sh

export ONESIDED_TEST_FABRIC=verbs
suite() {
    local from=$SECONDS
    ONESIDED_TEST_PERCENT=$2 "$TESTS/onesided/$1" --nocapture --test-threads=1
    say "$1, $2 % of the work of a test on the host: $((SECONDS - from)) s"
}
suite processes 10
suite torn_reads 2
suite server_killed 100
suite real_input 4
suite registered 100
suite idle 100
suite tenants 100
for object in qp mr pd cq cm_id; do
    [ "$(rdma_count $object)" = 0 ] || fail "$object left: $(rdma resource show $object)"
done
