# shellcheck shell=bash
# guests: 1
# ci: no
# limit_s: 900
# bins: onesided-server onesided-bench
# benches: onesided-bench/register
# env: ROUNDS
# Copy, or register? By length: what registering memory costs beside copying it (the bench), and a PUT
# that is copied beside one whose buffer the server READs, taking turns, medians of ROUNDS [3].
. tools/guests/lib.sh

export CRITERION_HOME=/tmp/criterion
"$BENCHES/onesided-bench/register" --bench >/tmp/register.log 2>&1 ||
    { cat /tmp/register.log; fail "the bench"; }
! grep 'nothing is measured' /tmp/register.log || fail "no device"
# us ACT LENGTH: the median.
us() {
    jq -r '.median.point_estimate * 10 | round / 10000 | tostring | .[:7]' \
        "$CRITERION_HOME/register/$1/$2/new/estimates.json"
}
say "| bytes | register anew, us | parked, us | copy, us |"
say "|---:|---:|---:|---:|"
for bytes in 4096 8192 16384 32768 65536 262144 1048576 16777216; do
    say "| $bytes | $(us anew $bytes) | $(us parked $bytes) | $(us copy $bytes) |"
done

port_is_open() { ss -Hltn 'sport = :7411' | grep -q .; }
"$BIN/onesided-server" --listen 0.0.0.0:7411 --fabric verbs --rdma require --log warn \
    --memory 256MiB &
within 30 port_is_open
# put BYTES ZERO_COPY_BYTES: p50 of PUTs from a registered buffer.
put() {
    "$BIN/onesided-bench" run --server "onesided://$HOST_IP?zero_copy_bytes=$2" --fabric verbs \
        --registered --records 16 --value-size "$1" -p readproportion=0 -p updateproportion=1 \
        --seconds 1 --json | jq .operations.update.p50_us
}
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
say "| bytes | PUT copied, p50, us | lent, p50, us |"
say "|---:|---:|---:|"
for bytes in 4096 8192 16384 32768 65536 262144 1048576; do
    rm -f /tmp/copied /tmp/lent
    for _ in $(seq "${ROUNDS:-3}"); do
        put $bytes 100000000 >>/tmp/copied
        put $bytes 1 >>/tmp/lent
    done
    say "| $bytes | $(median /tmp/copied) | $(median /tmp/lent) |"
done
say "load average of the guest: $(cut -d' ' -f1-3 /proc/loadavg)"
