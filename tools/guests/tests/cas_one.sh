# shellcheck shell=bash
# guests: 1
# ci: yes
# limit_s: 300
# tests: onesided/processes
# tests: onesided/around_device
# One host, processes apart, over the device: clients that update entries by WRITE and
# compare-and-swap, beside those that ask, and a server that changes the same words through a
# connection of the device to itself. Their histories are linearizable while clients are killed,
# entries expire, and all of them move and regions go.
. tools/guests/lib.sh

export ONESIDED_TEST_FABRIC=verbs ONESIDED_TEST_CAS=1 ONESIDED_TEST_PERCENT=10
suite() {
    local from=$SECONDS
    "$TESTS/onesided/$1" "$2" --nocapture --test-threads=1
    say "$*: $((SECONDS - from)) s"
}
suite processes so_they
suite around_device through_the_device
for object in qp mr pd cq cm_id; do
    [ "$(rdma_count $object)" = 0 ] || fail "$object left: $(rdma resource show $object)"
done
