# shellcheck shell=bash
# guests: 1
# ci: no
# limit_s: 300
# tests: onesided/processes
# One host, processes apart, over the device: clients that update entries by WRITE and
# compare-and-swap, beside those that ask, and a server that changes the same words through a
# connection of the device to itself. Their histories are linearizable while clients are killed.
. tools/guests/lib.sh

export ONESIDED_TEST_FABRIC=verbs ONESIDED_TEST_CAS=1 ONESIDED_TEST_PERCENT=10
"$TESTS/onesided/processes" so_they --nocapture --test-threads=1
for object in qp mr pd cq cm_id; do
    [ "$(rdma_count $object)" = 0 ] || fail "$object left: $(rdma resource show $object)"
done
