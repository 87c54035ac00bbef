# shellcheck shell=bash
# guests: 2
# limit_s: 150
# tests: onesided-fabric/verbs_path
# A server's host loses its power while a client of another host READs from it: the client hears
# of it within the retries' time, and each READ ends exactly once.
. tools/guests/lib.sh

export ONESIDED_VERBS=1 POWER_LOSS=1
"$TESTS/onesided-fabric/verbs_path" --exact processes::a_host_that_loses_its_power_is_noticed \
    --nocapture 2>&1 | tee /tmp/out
grep -o '[0-9]* READs, then after .*' /tmp/out | while read -r line; do say "$line"; done
