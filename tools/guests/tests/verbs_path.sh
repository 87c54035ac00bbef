# shellcheck shell=bash
# guests: 1
# ci: yes
# limit_s: 400
# tests: onesided-fabric/verbs_path
# The data path over RDMA when things go wrong: floods, dead rkeys, processes killed in the middle,
# requests that never complete, and a soak of many clients that checks every byte.
. tools/guests/lib.sh

ONESIDED_VERBS=1 "$TESTS/onesided-fabric/verbs_path" --test-threads 1 --nocapture 2>&1 | tee /tmp/out
! grep -q 'DID NOT RUN' /tmp/out || fail "the tests did not use the device"
grep '^test .* \.\.\. ok$\|^ok$' /tmp/out | wc -l >/tmp/passed
say "$(cat /tmp/passed) tests of the data path passed"
grep -o 'round .*READs.*\|.*additions, .*' /tmp/out | while read -r line; do say "$line"; done
for object in qp mr cq; do
    [ "$(rdma_count $object)" = 0 ] || fail "$object left: $(rdma resource show $object)"
done
