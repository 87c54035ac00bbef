# shellcheck shell=bash disable=SC2119 # options of `serve` are seldom needed
# guests: 1
# ci: no
# limit_s: 150
# bins: onesided-server
# tests: onesided/faults
# A server begins before its host has an RDMA device: it offers verbs when there is one, and a client
# that works over tcp meanwhile goes over to it without a wrong or missing answer.
. tools/guests/lib.sh
. tools/guests/faults.sh

offers_verbs() { grep -q 'clients can use verbs from now on' $server_log; }
went_over() { grep -q 'a better fabric can be used.*fabric="verbs"' /tmp/load.late.err; }

rdma_del
serve
load late
[ "$(of_load late ready fabric)" = tcp ] || fail "not over tcp"
rdma_add
from=$(now_ms)
within 60 offers_verbs
say "verbs is offered $(($(now_ms) - from)) ms after there is a device"
within 60 went_over
say "the client is over $(($(now_ms) - from)) ms after there is a device"
sleep 2
end_load late
[ "$(of_load late 'done' fabric)" = verbs ] || fail "not over verbs"
stop_server
none_left
