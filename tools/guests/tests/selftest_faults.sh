# shellcheck shell=bash
# guests: 2
# ci: no
# limit_s: 120
# The faults that tests inject are real: a slow network, a link and a device that go and return, a
# host that loses power and boots again.
. tools/guests/lib.sh
. tools/guests/perftest.sh
reads=20

port_is() { rdma link show rxe0/1 | grep -q "state $1 "; }

if [ "$HOST_ID" = 2 ] && [ "$BOOT" = 2 ]; then
    tell back
elif [ "$HOST_ID" = 2 ]; then
    # shellcheck disable=SC2119
    read_lat_server &
    barrier slow
    wait $!
    tell served
    sleep 100 # until power is lost
    fail "power was not lost"
else
    netem delay 50ms
    barrier slow
    read_lat "delayed by 50 ms" 10.77.0.2
    [ "$read_p50_us" -ge 50000 ] || fail "packets were not delayed"
    netem_off
    await served

    link_down
    within 10 port_is DOWN
    link_up
    within 10 port_is ACTIVE

    rdma_del
    ! ibv_devinfo -d rxe0 || fail "the device is still there"
    rdma_add
    within 10 port_is ACTIVE

    power_off 2
    power_on 2
    await back
    say "link, device and host went and returned"
fi
