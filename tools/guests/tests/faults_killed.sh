# shellcheck shell=bash disable=SC2119 # options of `serve` are seldom needed
# guests: 3
# ci: no
# limit_s: 400
# bins: onesided-server
# tests: onesided/faults
# kill -9 in mid-load, of a client, of a client's whole host, of the server, which starts again on
# the same port, and of the server's host: others are unharmed, answers stay right, what the dead
# had on the server comes back.
. tools/guests/lib.sh
. tools/guests/faults.sh

if [ "$HOST_ID" = 1 ] && [ "$BOOT" = 2 ]; then
    serve
    tell host_back
    await over 240
    stop_server
elif [ "$HOST_ID" = 1 ]; then
    serve
    barrier server 120
    await steady 200
    at_first=$(objects)
    tell victim
    await victim_ready 200
    say "with a second client $(objects)"
    tell kill_client
    await client_killed 200
    objects_become "$at_first"

    tell doomed
    await doomed_ready 200
    say "with a second host $(objects)"
    from=$(now_ms)
    power_off 3
    objects_become "$at_first" 60
    say "a host that lost power was forgotten $(($(now_ms) - from)) ms after it"

    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    none_left
    say "the killed server leaves no object in the kernel"
    serve
    tell restarted
    sleep 200 # until power is lost
    fail "power was not lost"
elif [ "$HOST_ID" = 3 ]; then
    barrier server 120
    await doomed 200
    load doomed
    tell doomed_ready
    sleep 200 # until power is lost
    fail "power was not lost"
else
    barrier server 120
    load steady FAULT_RESTARTS=1
    tell steady
    await victim 200
    load victim
    tell victim_ready
    await kill_client 200
    sleep 1
    kill_load victim
    before=$(gaps steady)
    tell client_killed
    await restarted 250
    [ "$(gaps steady)" -gt "$before" ] || after_gap steady "$before"
    sleep 1
    before=$(gaps steady)
    power_off 1
    sleep 8
    power_on 1
    await host_back 90
    after_gap steady "$before" 90
    sleep 1
    end_load steady
    [ "$(of_load steady 'done' fabric)" = verbs ] || fail "not over verbs again"
    tell over
fi
none_left
