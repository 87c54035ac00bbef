# shellcheck shell=bash
# guests: 2
# ci: no
# limit_s: 600
# tests: onesided-fabric/conformance
# The fabric's conformance suite over RDMA between two hosts: on one the server and the cases, on
# the other all their clients, which are told over TCP what to do.
. tools/guests/lib.sh

suite=$TESTS/onesided-fabric/conformance
if [ "$HOST_ID" = 2 ]; then
    ONESIDED_FAR_LISTEN=0.0.0.0:7420 "$suite" --exact far::serve::serve --nocapture &
    clients=$!
    await done 500
    [ "$(rdma_count qp)" = 0 ] || fail "queue pairs left: $(rdma resource show qp)"
    kill "$clients"
    wait "$clients" || true
else
    within 30 bash -c 'exec 3<>/dev/tcp/10.77.0.2/7420' 2>/dev/null
    cases=$("$suite" --list on::verbs_far:: 2>/dev/null | grep -c ': test$')
    ONESIDED_FAR=10.77.0.2:7420 "$suite" --test-threads 1 --nocapture on::verbs_far:: 2>&1 |
        tee /tmp/out
    passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' /tmp/out)
    [ "$passed" = "$cases" ] || fail "$passed of $cases cases ran"
    ! grep -q 'DID NOT RUN' /tmp/out || fail "the cases did not use the device"
    say "$passed cases of the conformance suite passed over RDMA between two hosts"
    tell done
fi
