# shellcheck shell=bash disable=SC2119 # options of `serve` are seldom needed
# guests: 2
# ci: no
# limit_s: 420
# bins: onesided-server
# tests: onesided/faults
# A network that loses 1 % of the packets, one that takes 50 ms, and links that go down for a moment
# and for longer than the device tries again: answers stay right, connections come back, over RDMA.
. tools/guests/lib.sh
. tools/guests/faults.sh

both_ways() { # NAME COMMAND...: on both hosts at the same time
    local name=$1
    shift
    barrier "$name.begin" 120
    "$@"
    barrier "$name.on" 120
}

if [ "$HOST_ID" = 1 ]; then
    serve
    # Those that the server has with itself.
    within 20 grep -q 'is ready' $server_log
    idle_qps=$(rdma_count qp)
    barrier server 120
    both_ways loss netem loss 1%
    both_ways delay netem delay 50ms
    both_ways normal netem_off
    await flap 300
    link_down
    sleep 10
    link_up
    tell flapped
    await over 150
    within 40 _are "$idle_qps queue pairs, $(rdma_count mr) regions"
    stop_server
else
    barrier server 120
    load good
    both_ways loss netem loss 1%
    load lossy
    sleep 12
    end_load lossy
    both_ways delay netem delay 50ms
    load slow
    sleep 12
    end_load slow
    both_ways normal netem_off

    for seconds in 1 10; do
        sleep 1
        before=$(gaps good)
        link_down
        sleep $seconds
        from=$(now_ms)
        link_up
        after_gap good "$before"
        say "right answers $(($(now_ms) - from)) ms after the link was up again, down for $seconds s"
        comes_to good verbs 90
    done
    before=$(gaps good)
    tell flap
    await flapped 60
    after_gap good "$before"
    say "the server's link was down for 10 s"
    comes_to good verbs 90
    end_load good
    tell over
fi
none_left
