# shellcheck shell=bash
# guests: 1
# ci: no
# limit_s: 300
# tests: onesided/around_device
# A server that changes words by its processor which clients change over the device, as no server
# does, is caught by the clients' histories. When is a matter of luck: most often within a minute.
. tools/guests/lib.sh

ONESIDED_TEST_FABRIC=verbs "$TESTS/onesided/around_device" --exact through_device --nocapture \
    >/tmp/out 2>&1 || { tail -n 20 /tmp/out; fail "nothing was noticed"; }
grep -o '[0-9]* rounds in .*' /tmp/out | while read -r line; do say "$line"; done
