# shellcheck shell=bash
# guests: 2
# ci: yes
# limit_s: 280
# tests: onesided-fabric/verbs_setup onesided-fabric/lib
# Connections over verbs are made, refused, limited, given up and ended, on one host and between
# two, also by peers that do it wrong; made-up keys and addresses bring no bytes; nothing is left
# behind.
. tools/guests/lib.sh
export ONESIDED_VERBS=1 RUST_BACKTRACE=0
setup=$TESTS/onesided-fabric/verbs_setup

"$setup" --test-threads=1 --nocapture other_hosts_connect || fail "other_hosts_connect"
if [ "$HOST_ID" = 1 ]; then
    "$setup" --test-threads=1 --nocapture --skip other_hosts_connect || fail "verbs_setup"
    "$TESTS/onesided-fabric/lib" --test-threads=1 --nocapture verbs:: | tee /tmp/out || fail "verbs::"
    say "made-up keys and addresses: $(grep -o '[0-9]* attempts failed.*' /tmp/out)"
    for object in qp mr pd cq cm_id srq; do
        [ "$(rdma_count $object)" = 0 ] || fail "$object left: $(rdma resource show $object)"
    done
    say "connections are set up and ended as they should"
fi
