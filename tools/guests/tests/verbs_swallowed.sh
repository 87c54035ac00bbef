# shellcheck shell=bash
# guests: 2
# ci: no
# limit_s: 180
# bins: onesided onesided-server
# A server's RDMA address is of a network that swallows every packet of its clients: who prefers
# RDMA falls back to tcp in the time it has to connect, who requires it is told what was tried.
. tools/guests/lib.sh

nowhere=10.99.0.1
if [ "$HOST_ID" = 1 ]; then
    ip address add $nowhere/32 dev eth0
    "$BIN/onesided-server" --listen 0.0.0.0:7411 --memory 64MiB --rdma require \
        --rdma-device $nowhere >/tmp/server.log 2>&1 &
    within 40 grep -q 'is ready' /tmp/server.log || { cat /tmp/server.log; fail "no server"; }
    barrier server
    await over 150
else
    ip route add $nowhere dev eth0
    ip neighbour add $nowhere lladdr 02:00:00:00:00:99 dev eth0
    barrier server
    "$BIN/onesided" --server 10.77.0.1 ping >/tmp/ping 2>&1 || { cat /tmp/ping; fail "no fallback"; }
    grep -q 'over tcp' /tmp/ping || { cat /tmp/ping; fail "not over tcp"; }
    say "$(tail -n 1 /tmp/ping)"
    ! "$BIN/onesided" --server 10.77.0.1 --rdma require ping >/tmp/ping 2>&1 || fail "over what?"
    grep -q "$nowhere" /tmp/ping || { cat /tmp/ping; fail "not told what was tried"; }
    say "$(head -n 1 /tmp/ping)"
    tell over
fi
