# shellcheck shell=bash
# guests: 1
# ci: no
# mib: 12000
# limit_s: 3000
# bins: onesided-server onesided-bench onesided-idle
# env: CLIENTS
# What a connected client costs the server over RDMA, at 1, 100, 1000 and 4000 idle clients (CLIENTS),
# and what a PUT takes beside them. Connecting takes 0.05 to 0.1 s each under emulation.
# Receive buffers and registrations must not grow with clients.
. tools/guests/lib.sh

counts=${CLIENTS:-1 100 1000 4000}
ulimit -n 100000
# Stacks of 8000 threads are no huge pages.
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
sysctl -qw kernel.threads-max=100000 kernel.pid_max=100000 vm.max_map_count=1000000 \
    net.core.somaxconn=4096
out=/tmp/bounded
mkdir -p $out
cat >$out/server.toml <<'TOML'
listen = "0.0.0.0:7411"
memory = "256MiB"
fabrics = ["verbs"]
rdma = "require"
log = "warn"
max_sessions = 8192
max_connections = 16384
max_handshakes = 4096
session_lease_ms = 240000
ticket_lease_ms = 120000
handshake_timeout_ms = 60000
TOML
"$BIN/onesided-server" --config $out/server.toml &
server=$!
port_is_open() { ss -Hltn 'sport = :7411' | grep -q .; }
within 30 port_is_open

url=onesided://$HOST_IP
status() { awk -v key="$1:" '$1 == key { print $2 }' "/proc/$server/status"; }
# What the kernel holds in slabs and mappings of its own, for both ends, in KiB.
kernel_kib() { awk '/^(SUnreclaim|VmallocUsed|Percpu):/ { kib += $2 } END { print kib }' /proc/meminfo; }
# The kernel names the thread that made an object.
objects() {
    rdma resource show "$1" | awk -v threads="$(echo "/proc/$server/task/"*)" '
        BEGIN { split(threads, list, " "); for (i in list) { sub(".*/", "", list[i]); own[list[i]] } }
        { for (i = 1; i < NF; i++) if ($i == "pid" && $(i + 1) in own) count++ }
        END { print count + 0 }'
}
# Listing shared receive queues never ends when one has more queue pairs than fit into a message of
# the kernel's: they are counted, and each client has one of its own.
own_srqs() {
    rdma resource show |
        awk -v clients="$1" '{ for (i = 1; i < NF; i++) if ($i == "srq") print $(i + 1) - clients }'
}
put_us() {
    "$BIN/onesided-bench" run --server "$url" --fabric verbs --records 100 --value-size 100 \
        --no-fill -p readproportion=0 -p updateproportion=1 --seconds 1 --json |
        jq .operations.update.p50_us
}
# The least: other work on the machine only adds to it.
least_put_us() {
    for _ in 1 2 3 4 5 6 7 8 9; do put_us; done | sort -n | head -n 1
}
connected() { grep -q connected $out/idle; }

# with N COMMAND...: runs it while N clients are connected and idle.
with() {
    local clients=$1 holder
    shift
    rm -f $out/idle $out/hold
    mkfifo $out/hold
    "$BIN/onesided-idle" "$clients" --server "$url" --fabric verbs <$out/hold >$out/idle &
    holder=$!
    exec 7>$out/hold
    within $((60 + clients / 4)) connected
    say "$(cat $out/idle)"
    "$@" "$clients"
    exec 7>&-
    wait $holder
    within $((60 + clients / 20)) all_gone
}
all_gone() { [ "$(objects qp)" = 0 ]; }

# row BASE_RSS BASE_KERNEL CLIENTS
row() {
    local clients=$3 rss kernel put
    sleep 2
    rss=$(status RssAnon) kernel=$(kernel_kib)
    put=$(least_put_us)
    [ -n "${first_put:-}" ] || first_put=$put
    say "| $clients | $rss | $(((rss - $1) * 1024 / clients)) | $(status VmPin) |" \
        "$(objects qp) / $(objects mr) / $(objects cq) / $(own_srqs "$clients") |" \
        "$(((kernel - $2) * 1024 / clients)) | $(find "/proc/$server/fd" -type l | wc -l) | $put |" \
        "$(awk -v a="$put" -v b="$first_put" 'BEGIN { printf "%.2f", a / b }') |"
}
# Regions are registered, buffers and tables made when they are first used: not a client's cost.
warm() { put_us >/dev/null; }
with 1 warm
say "| clients | anonymous memory, KiB | more per client, bytes | pinned, KiB | QP / MR / CQ / SRQ |" \
    "kernel per client, both ends, bytes | descriptors | PUT p50, us | of that at one |"
say "|---:|---:|---:|---:|---|---:|---:|---:|---:|"
rss=$(status RssAnon) kernel=$(kernel_kib)
for clients in $counts; do with "$clients" row "$rss" "$kernel"; done
with 1 row "$rss" "$kernel"
say "load average of the guest: $(cut -d' ' -f1-3 /proc/loadavg)"
