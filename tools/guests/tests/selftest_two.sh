# shellcheck shell=bash
# guests: 2
# ci: no
# limit_s: 120
# Two hosts: READs and rping from one to the other, over IPv4 and, without any IPv4 address, IPv6.
. tools/guests/lib.sh
. tools/guests/perftest.sh

if [ "$HOST_ID" = 1 ]; then
    read_lat_server &
    barrier server
    wait $!
    read_lat_server -R &
    barrier cm_server
    wait $!
    rping -s -a "$HOST_IP" -C 10 &
    barrier rping_server
    wait $!
    ipv6_only
    rping -s -a "$HOST_IP6" -C 10 &
    barrier rping6_server
    wait $!
else
    barrier server
    read_lat "by hand" 10.77.0.1
    barrier cm_server
    read_lat "by the connection manager" 10.77.0.1 -R
    barrier rping_server
    within 20 rping -c -a 10.77.0.1 -C 10
    ipv6_only
    barrier rping6_server
    within 20 rping -c -a fd77::1 -C 10
    say "rping over IPv4 and IPv6"
fi
