# shellcheck shell=bash
# For scripts that run in guests: . tools/guests/lib.sh
# It makes a script end at the first command that fails. Every wait has a limit, and ends at once
# when another host has failed already.
set -euo pipefail

say() { echo "[host$HOST_ID] $*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

# Stops waiting for a host whose command has failed.
_check_others() {
    local file
    for file in /run/guests/host*.exit; do
        [ ! -s "$file" ] || [ "$(cat "$file")" = 0 ] || fail "$(basename "$file" .exit) has failed"
    done
}

# within SECONDS COMMAND...: repeats a command until it succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        _check_others
        [ $SECONDS -lt $end ] || fail "in vain until now: $*"
        sleep 0.1
    done
}

# tell NAME [TEXT]: a line for all hosts and the caller (FOLDER/shared/NAME). It is written at once
# and never empty, so that whoever sees bytes in the file sees them all.
tell() { echo "${2:-}" >"$SHARED/$1"; }

# await NAME [SECONDS]: waits until somebody has told it, and prints the text.
await() {
    within "${2:-60}" test -s "$SHARED/$1"
    cat "$SHARED/$1"
}

# barrier NAME [SECONDS]: returns when all hosts have come here. A name serves once.
barrier() {
    local id
    tell "barrier.$1.$HOST_ID"
    for id in $(seq "$HOSTS"); do
        within "${2:-60}" test -s "$SHARED/barrier.$1.$id"
    done
}

# netem ARGS: how packets leave this host: netem loss 1%; netem delay 50ms. netem_off: as ever.
# What processes of one host send each other never comes to eth0 and is not touched.
netem() { tc qdisc replace dev eth0 root netem "$@"; }
netem_off() { tc qdisc delete dev eth0 root; }

# IPv6 addresses go with the link; link_up restores them.
link_down() { ip link set eth0 down; }
link_up() {
    ip link set eth0 up
    ip address replace "$HOST_IP6/64" dev eth0 nodad
}

rdma_del() { rdma link delete rxe0; }
rdma_add() { rdma link add rxe0 type rxe netdev eth0; }

# No IPv4: the device has IPv6 GIDs only.
ipv6_only() { ip -4 address flush dev eth0; }

# rdma_count qp|mr|pd|cq|cm_id|ctx|srq: how many the kernel holds, its own not counted. Must be 0
# again when every process that used RDMA is gone.
rdma_count() { rdma resource show "$1" | grep -c ' pid [0-9]' || true; }

_power() {
    echo "$2" >"/run/guests/power.$1"
    within 30 test ! -e "/run/guests/power.$1"
}

# power_off HOST: that host, which may be this one, loses power. No failure, unless it is on again.
power_off() { _power "$1" off; }
# power_on HOST: boots it again; it runs the same command, with BOOT=2 and so on.
power_on() { _power "$1" on; }
