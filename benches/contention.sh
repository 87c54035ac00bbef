#!/usr/bin/env bash
# Many clients and few keys (docs/BENCHMARKS.md): PUTs of 100 bytes to keys that are there, by the
# clients themselves (cas) and by RPC, taking turns; additions to one counter; and the server's CPU
# time while clients update by themselves, beside the same time without anything. Medians as tables,
# of an even number of rounds the lower one.
#
#   benches/contention.sh [shm|verbs [ADDRESS]]
#
# In a guest: tools/guests/test contention. It fails if a client did not get on in each second (PER)
# or run, if a PUT failed, or if a counter was not exact. Variables, and what is assumed:
#   CLIENTS [1 4 16]  KEYS [hot zipfian]  RECORDS [100000]  ROUNDS [3]  RUN_S [2]  CPU_S [5]
#   PER [second]: or run, where more clients poll than there are processors
#   ADDS [10000000]: of all clients, at most, in ADDS_S [10] seconds; 0 = as many as there come
#   BIN, BENCHES: folders with what cargo built, laid out as tools/guests/test does it
set -euo pipefail
cd "$(dirname "$0")/.."
fabric=${1:-shm} address=${2:-127.0.0.1} port=17411
clients=${CLIENTS:-1 4 16} keys=${KEYS:-hot zipfian} records=${RECORDS:-100000} rounds=${ROUNDS:-3}
run_s=${RUN_S:-2} cpu_s=${CPU_S:-5} adds=${ADDS:-10000000} adds_s=${ADDS_S:-10}
per=${PER:-second}
out=$(mktemp -d)
server='' stuck=()
trap '[ -z "$server" ] || kill $server; rm -rf "$out"' EXIT

fail() { echo "FAILED: $*" >&2; exit 1; }
# median FILE COLUMN FORMAT; a dash where there is none.
median() {
    cut -f "$2" "$out/$1" | sort -n |
        awk -v f="$3" '{ v[NR] = $1 } END { m = v[int((NR + 1) / 2)]; printf m == "" ? "-" : f, m }'
}
# CPU time of the server in ms.
cpu_ms() { awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) * 1000 / hz }' "/proc/$server/stat"; }

build() {
    [ -z "${BIN:-}" ] || return 0
    cargo build --quiet --release --bin onesided-server --bin onesided-bench
    BIN=${CARGO_TARGET_DIR:-target}/release BENCHES=$out/benches
    mkdir -p "$BENCHES/onesided-bench"
    ln -s "$(cargo bench --no-run --message-format json -p onesided-bench --bench adds 2>/dev/null |
        jq -r 'select(.target.name? == "adds") | .executable')" "$BENCHES/onesided-bench/adds"
}

serve() {
    local rdma=never tries=0
    [ "$fabric" = shm ] || rdma=require
    "$BIN/onesided-server" --listen "$address:$port" --admin off --fabric "$fabric" --rdma $rdma \
        --log warn --memory 512MiB &
    server=$!
    until bench load 1 --records 1 >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || fail "no server"
        sleep 0.1
    done
}

# bench run|load CLIENTS ARGS...
bench() {
    local what=$1 threads=$2
    shift 2
    "$BIN/onesided-bench" "$what" -w a --target "onesided://$address:$port" --fabric "$fabric" \
        --clients "$threads" --value-size 100 --json "$@"
}

# puts KEYS CLIENTS cas|rpc SECONDS: to records that are there; the JSON is in $out/last.
puts() {
    local those=(--records "$records" -p requestdistribution="$1")
    [ "$1" != hot ] || those=(--records 1)
    bench run "$2" --update "$3" --no-fill -p readproportion=0 -p updateproportion=1 \
        --seconds "$4" "${those[@]}" >"$out/last"
    [ "$(of .operations.update.failed)" = 0 ] || fail "$*: $(of .first_failure)"
}
of() { jq -r "$1" "$out/last"; }

# A round: what it showed, in columns. Each client has to get on.
round() {
    local got_on=".fewest_in_a_second // .fewest"
    [ "$per" = second ] || got_on=.fewest
    puts "$1" "$2" "$3" "$run_s"
    jq -r '(.operations_by_thread // {}) as $by | [.throughput_ops_per_s,
        .operations.update.p50_us, .operations.update.p99_us, .operations.update.max_us / 1000,
        .updates_lost / .operations.update.count, .round_trips_per_one_sided_put,
        100 * (1 - .one_sided_puts_per_op), .server_cpu_seconds_per_million_ops,
        if $by.most then $by.fewest / $by.most else "" end, $by.fewest_in_a_second] |
        @tsv' "$out/last" >>"$out/$1.$2.$3"
    [ "$2" = 1 ] || [ "$(of ".operations_by_thread | $got_on")" -gt 0 ] ||
        stuck+=("$*: a client did nothing in a $per: $(of '.operations_by_thread | tostring')")
}

row() {
    local name=$1.$2.$3
    echo "| $1 | $2 | $3 | $(median "$name" 1 %.0f) | $(median "$name" 2 %.2f) us |" \
        "$(median "$name" 3 %.1f) us | $(median "$name" 4 %.1f) ms | $(median "$name" 5 %.3f) |" \
        "$(median "$name" 6 %.3f) | $(median "$name" 7 %.2f) % | $(median "$name" 8 %.2f) us |" \
        "$(median "$name" 9 %.2f) | $(median "$name" 10 %.0f) |"
}

contention() {
    local those threads mode
    for _ in $(seq "$rounds"); do
        for those in $keys; do
            for threads in $clients; do
                for mode in cas rpc; do round "$those" "$threads" "$mode"; done
            done
        done
    done
    echo "| keys | clients | by | PUT/s | p50 | p99 | longest | swaps lost a PUT | round trips |" \
        "by RPC | server CPU a PUT | fewest to most | fewest in a second |"
    echo "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for those in $keys; do
        for threads in $clients; do
            for mode in cas rpc; do row "$those" "$threads" "$mode"; done
        done
    done
}

# What updates leave to the server: its CPU time in so many seconds of them, and in as many after
# them, beside as many without anything.
idle() {
    local those threads before idle during count
    before=$(cpu_ms)
    sleep "$cpu_s"
    idle=$(($(cpu_ms) - before))
    for those in $keys; do
        for threads in $clients; do
            before=$(cpu_ms)
            puts "$those" "$threads" cas "$cpu_s"
            during=$(($(cpu_ms) - before)) count=$(of .operations.update.count)
            before=$(cpu_ms)
            sleep "$cpu_s"
            echo "server CPU in $cpu_s s of $count PUTs, $those, $threads clients, connecting" \
                "included: $during ms, $(((during - idle) * 1000000 / count)) ns each beyond idle;" \
                "in $cpu_s s afterwards $(($(cpu_ms) - before)) ms, idle $idle ms"
        done
    done
}

build
serve
for mode in cas rpc; do bench load 1 --update $mode --records "$records" >/dev/null; done
contention
idle
for threads in $clients; do
    "$BENCHES/onesided-bench/adds" "onesided://$address:$port?fabric=$fabric" "$threads" "$adds_s" \
        $([ "$adds" = 0 ] || echo "$adds")
done
echo "load average: $(cut -d' ' -f1-3 /proc/loadavg)"
[ ${#stuck[@]} = 0 ] || fail "${stuck[@]}"
