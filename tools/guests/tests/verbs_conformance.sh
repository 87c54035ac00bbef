# shellcheck shell=bash
# guests: 1
# ci: yes
# limit_s: 240
# tests: onesided-fabric/conformance
# The fabric's conformance suite over RDMA: messages and one-sided operations, client and server
# in one process, through the host's device.
. tools/guests/lib.sh

suite=$TESTS/onesided-fabric/conformance
cases=$("$suite" --list on::verbs:: 2>/dev/null | grep -c ': test$')
ONESIDED_VERBS=1 "$suite" --test-threads 1 --nocapture on::verbs:: 2>&1 | tee /tmp/out
passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' /tmp/out)
[ "$passed" = "$cases" ] || fail "$passed of $cases cases ran"
! grep -q 'DID NOT RUN' /tmp/out || fail "the cases did not use the device"
say "$passed cases of the conformance suite passed over RDMA"
