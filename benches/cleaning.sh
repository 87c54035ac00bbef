#!/bin/sh
# PUTs beside cleaning (docs/BENCHMARKS.md): p99.9 of whole values of 100 bytes, uniform over a million
# keys, with memory enough and at 85 % of 200 MiB, in turns. benches/cleaning.sh [ROUNDS [SECONDS]]
# For a machine that does nothing else.
set -eu
cd "$(dirname "$0")/.."
rounds=${1:-5} seconds=${2:-5}
cargo build --quiet --release --bin onesided-server --bin onesided-bench
dir=$(mktemp -d)
servers=
trap 'kill $servers; rm -rf "$dir"' EXIT

serve() {
    port=$1
    shift
    target/release/onesided-server --listen "127.0.0.1:$port" --admin off --fabric shm --rdma never \
        --log warn "$@" &
    servers="$servers $!"
}

# PORT SECONDS [--no-fill]: p50 and p99.9, us, and operations a second.
puts() {
    port=$1 for=$2
    shift 2
    target/release/onesided-bench run -w a -p readproportion=0 -p updateproportion=1 \
        -p requestdistribution=uniform -p writeallfields=true --records 1000000 --value-size 100 \
        --fabric shm --threads 1 --clients 1 --duration "${for}s" --target "onesided://127.0.0.1:$port" \
        --json "$dir/json" "$@" >/dev/null
    for key in p50_us p99_9_us throughput_ops_per_s; do
        tr ',{}' '\n\n\n' <"$dir/json" | sed -n "s/^ *\"$key\": *//p" | head -n 1
    done | tr '\n' ' '
}

serve 17411 --memory 2GiB --cleaning off
serve 17412 --memory 200MiB
sleep 1
for port in 17411 17412; do puts $port 5 >/dev/null; done
for round in $(seq "$rounds"); do
    enough=$(puts 17411 "$seconds" --no-fill)
    cleaned=$(puts 17412 "$seconds" --no-fill)
    echo "$round $enough $cleaned"
done | awk '
    { printf "%d: p50 %.1f and %.1f us, p99.9 %.0f and %.0f us: %.2f times, %.0f and %.0f PUT/s\n",
        $1, $2, $5, $3, $6, $6 / $3, $4, $7 }'
