# shellcheck shell=bash
# guests: 1
# ci: no
# mib: 3072
# limit_s: 900
# bins: onesided-server onesided-bench
# env: VALKEY_SRC ROUNDS
# Speed over RDMA beside the raw device (perftest) and Valkey's RDMA module, taking turns in one
# guest: medians of ROUNDS [7] as a table. VALKEY_SRC: a tree of Valkey 8 or newer where
# `make BUILD_RDMA=module` was run; without it that row is left out. Misses fail nothing.
. tools/guests/lib.sh

rounds=${ROUNDS:-7}
out=/tmp/speed
mkdir -p $out

port_is_open() { ss -Hltn "sport = :$1" | grep -q .; }

# raw TOOL ARGS...: one run of a tool of perftest on this host; its output.
raw() {
    "$@" -d rxe0 -F >/dev/null 2>&1 &
    local server=$!
    within 30 port_is_open 18515
    "$@" -d rxe0 -F "$HOST_IP" 2>/dev/null
    wait $server || true
}
# note NAME VALUE: a round's figure.
note() { echo "$2" >>"$out/$1"; }
median() { sort -n "$out/$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
bench() { # ARGS...: reads of uniform keys, unless they say otherwise
    "$BIN/onesided-bench" run --server "onesided://$HOST_IP" --fabric verbs --json \
        --workload c -p requestdistribution=uniform "$@"
}
field() { jq -r "$1"; }
gets() { bench --table small --records 1000 --value-size 100 --no-fill "$@"; }
large() { bench --table large --records 16 --value-size 1048576 --no-fill "$@"; }
# User and system time of the server in ms.
server_cpu_ms() { awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) * 1000 / hz }' "/proc/$server/stat"; }

"$BIN/onesided-server" --listen 0.0.0.0:7411 --fabric verbs --rdma require --log warn \
    --table small --table large --memory 256MiB &
server=$!
within 30 port_is_open 7411
bench --table small --records 1000 --value-size 100 --seconds 1 >/dev/null
bench --table large --records 16 --value-size 1048576 --seconds 1 >/dev/null
# Entries have size classes; the table's directory is longer and READ once.
bytes=$(gets --prefill --seconds 1 | field '(.read_bytes_per_op / .one_sided_reads_per_op / 64 | floor) * 64')

if [ -n "${VALKEY_SRC:-}" ]; then
    gcc -O2 -w -Dmain=test_main -include "$VALKEY_SRC/tests/rdma/rdma-test.c" \
        -o $out/valkey_get tools/guests/peers/valkey_get.c -lrdmacm -libverbs
    "$VALKEY_SRC/src/valkey-server" --port 6380 --save '' --loadmodule \
        "$VALKEY_SRC/src/valkey-rdma.so" bind="$HOST_IP" port=6379 >$out/valkey.log 2>&1 &
    within 30 port_is_open 6380
fi

for _ in $(seq "$rounds"); do
    note raw_lat "$(raw ib_read_lat -s "$bytes" -n 4000 | awk -v s="$bytes" '$1 == s { print $5 }')"
    note warm "$(gets --prefill --seconds 1 | field .operations.read.p50_us)"
    note cold "$(gets --cache-bytes 0 --seconds 1 | field .operations.read.p50_us)"
    if [ -n "${VALKEY_SRC:-}" ]; then
        note valkey "$($out/valkey_get "$HOST_IP" 6379 2000)"
    fi
    note raw_rate "$(raw ib_read_bw -s "$bytes" -t 16 -n 10000 |
        awk -v s="$bytes" '$1 == s { print $5 * 1e6 }')"
    note rate "$(gets --prefill --batch 16 --seconds 1 | field .throughput_ops_per_s)"
    note raw_bw "$(raw ib_read_bw -s 1048576 -n 128 | awk '$1 == 1048576 { print $4 }')"
    note bw "$(large --prefill --registered --seconds 1 | field .throughput_ops_per_s)"
done

before=$(server_cpu_ms)
ops=$(gets --prefill --seconds 5 | field .operations.read.count)
during=$(server_cpu_ms)
sleep 5
after=$(server_cpu_ms)

# row TITLE FIGURE UNIT BESIDE FIGURE RATIO TARGET YES
row() { say "| $1 | $2 $3 | $4 | $5 $3 | $6 | $7 | $8 |"; }
# ratio A B FORMAT; holds A OP B
ratio() { awk -v a="$1" -v b="$2" "BEGIN { printf \"$3\", a / b }"; }
holds() { awk -v a="$1" -v b="$3" "BEGIN { exit !(a $2 b) }" && echo yes || echo '**no**'; }
compare() { # TITLE OURS UNIT BESIDE THEIRS OP BOUND TARGET
    local r
    r=$(ratio "$2" "$5" %.2f)
    row "$1" "$2" "$3" "$4" "$5" "$r" "$8" "$(holds "$r" "$6" "$7")"
}
say "| onesided | figure | beside | figure | ratio | target | met |"
say "|---|---:|---|---:|---:|---|---|"
raw_lat=$(median raw_lat)
compare "GET of 100 B, cached bucket, p50" "$(median warm)" us "ib_read_lat of $bytes B" \
    "$raw_lat" '<=' 1.25 'at most 1.25'
compare "GET of 100 B, cold, p50" "$(median cold)" us "ib_read_lat of $bytes B" \
    "$raw_lat" '<=' 2.3 'at most 2.3'
compare "GETs of 100 B, 16 outstanding" "$(median rate | cut -d. -f1)" /s \
    "ib_read_bw of $bytes B, depth 16" "$(median raw_rate | cut -d. -f1)" '>=' 0.8 'at least 0.80'
compare "get_into of 1 MiB" "$(median bw | cut -c1-5)" MiB/s "ib_read_bw of 1 MiB" "$(median raw_bw)" \
    '>=' 0.85 'at least 0.85'
if [ -n "${VALKEY_SRC:-}" ]; then
    compare "GET of 100 B, cached bucket, p50" "$(median warm)" us "Valkey RDMA, synchronous GET" \
        "$(median valkey)" '<=' 0.2 'at most 0.20'
fi
say "server CPU: $((during - before)) ms in 5 s with $ops GETs (a client that connects included)," \
    "$((after - during)) ms in 5 s without"
say "load average of the guest: $(cut -d' ' -f1-3 /proc/loadavg)"
