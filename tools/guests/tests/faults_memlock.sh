# shellcheck shell=bash disable=SC2119 # options of `serve` are seldom needed
# guests: 1
# ci: yes
# limit_s: 150
# bins: onesided-server
# tests: onesided/faults
# Too little memory may be locked, for the server and for the client: whoever prefers RDMA goes on
# over tcp and names the limit, whoever requires it ends with that reason.
. tools/guests/lib.sh
. tools/guests/faults.sh

# poor COMMAND...: becomes a command that may lock 64 KiB. Root may lock what it likes: without
# that right.
poor() {
    ulimit -l 64
    exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$@"
}

# named TITLE FILE: shows the line that says what is wrong and what to do. A server listens a
# little before it says it.
named() {
    within 20 grep -qi 'memlock' "$2"
    say "$1: $(grep -i 'memlock' "$2" | head -n 1)"
}

from=$(now_ms)
! (poor "$BIN/onesided-server" --listen 127.0.0.1:7422 --fabric verbs,tcp --rdma require) \
    >/tmp/require.log 2>&1 || fail "a server that requires RDMA started with 64 KiB"
named "server, require, ends after $(($(now_ms) - from)) ms" /tmp/require.log

serve_as=poor
serve
named "server, prefer" $server_log
load over-tcp
end_load over-tcp
[ "$(of_load over-tcp 'done' fabric)" = tcp ] || fail "not over tcp"
stop_server

serve_as="env"
serve
load rich FAULT_RDMA=require
load_as=poor
from=$(now_ms)
begin_load must FAULT_RDMA=require
! wait "${load_pids[must]}" || fail "a client that requires RDMA got on with 64 KiB"
named "client, require, ends after $(($(now_ms) - from)) ms" /tmp/load.must.err
from=$(now_ms)
load may
named "client, prefer, works after $(($(now_ms) - from)) ms" /tmp/load.may.err
end_load may
[ "$(of_load may 'done' fabric)" = tcp ] || fail "not over tcp"
end_load rich
stop_server
none_left
