# shellcheck shell=bash
# guests: 1
# ci: no
# mib: 3072
# limit_s: 600
# bins: onesided-server
# benches: onesided-bench/update
# env: ROUNDS
# Writing without asking over RDMA, beside the raw device in one guest: an update of an entry beside
# WRITE and CAS posted together, an addition to a counter beside ib_atomic_lat, taking turns, medians
# of ROUNDS [7] as a table. Misses fail nothing; more round trips than one, or the server's, do.
. tools/guests/lib.sh

rounds=${ROUNDS:-7}
out=/tmp/update
mkdir -p $out
# A key of 16 bytes and a value of 100.
bytes=160

port_is_open() { ss -Hltn "sport = :$1" | grep -q .; }
note() { echo "$2" >>"$out/$1"; }
median() { sort -n "$out/$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
# of WORD: the median in the line of the bench that begins so.
of() { sed -n "s/^$1 over verbs: p50 \([0-9.]*\) us.*/\1/p" $out/last; }
# one_round_trip WORD MOST: all of that line without the server, in at most so many round trips.
one_round_trip() {
    local each most=$2 line="^$1 over verbs:.*; 100\.0 % without the server,"
    each=$(sed -n "s/$line \([0-9.]*\) round trips each\$/\1/p" $out/last)
    awk -v n="${each:-0}" -v most="$most" 'BEGIN { exit !(n + 0 >= 1 && n + 0 <= most) }' ||
        fail "$1: not without the server in $most round trips: $(cat $out/last)"
}
raw_atomic() {
    ib_atomic_lat -A FETCH_AND_ADD -d rxe0 -F -n 4000 >/dev/null 2>&1 &
    local server=$!
    within 30 port_is_open 18515
    ib_atomic_lat -A FETCH_AND_ADD -d rxe0 -F -n 4000 "$HOST_IP" 2>/dev/null |
        awk '$1 == 8 { print $5 }'
    wait $server || true
}

gcc -O2 -o $out/write_cas tools/guests/peers/write_cas.c -libverbs
"$BIN/onesided-server" --listen 0.0.0.0:7411 --fabric verbs --rdma require --log warn \
    --memory 256MiB &
server=$!
within 30 port_is_open 7411
ticks() { awk '{ print $14 + $15 }' "/proc/$server/stat"; }

for _ in $(seq "$rounds"); do
    note raw_atomic "$(raw_atomic)"
    $out/write_cas rxe0 $bytes 4000 >$out/raw
    read -r write_cas add <$out/raw
    note chain "$write_cas"
    note add "$add"
    from=$(ticks)
    "$BENCHES/onesided-bench/update" "onesided://$HOST_IP?fabric=verbs" 4000 >$out/last
    note cpu_ms $((($(ticks) - from) * 1000 / $(getconf CLK_TCK)))
    note put "$(of PUT)"
    note put_in_turn "$(of 'PUT in turn')"
    note fetch_add "$(of fetch_add)"
    cat $out/last
    # The same key again and again meets its own commit now and then.
    one_round_trip PUT 1.05
    one_round_trip 'PUT in turn' 1.0001
    one_round_trip fetch_add 1.0001
done

# row TITLE OURS BESIDE THEIRS BOUND
row() {
    local ratio met='**no**'
    ratio=$(awk -v a="$2" -v b="$4" 'BEGIN { printf "%.2f", a / b }')
    ! awk -v a="$ratio" -v b="$5" 'BEGIN { exit !(a <= b) }' || met=yes
    say "| $1 | $2 us | $3 | $4 us | $ratio | at most $5 | $met |"
}
say "| onesided | figure | beside | figure | ratio | target | met |"
say "|---|---:|---|---:|---:|---|---|"
row "PUT of 100 B in a cas table, p50" "$(median put)" "WRITE of $bytes B and CAS, one doorbell" \
    "$(median chain)" 1.5
row "PUT of 64 keys in turn, p50" "$(median put_in_turn)" "the same" "$(median chain)" 1.5
row "fetch_add, p50" "$(median fetch_add)" "ib_atomic_lat, FETCH_AND_ADD" "$(median raw_atomic)" 1.3
row "fetch_add, p50" "$(median fetch_add)" "the same loop with FETCH_AND_ADD" "$(median add)" 1.3
say "server CPU in a round of 13500 updates and additions, connecting included: $(median cpu_ms) ms"
say "load average of the guest: $(cut -d' ' -f1-3 /proc/loadavg)"
