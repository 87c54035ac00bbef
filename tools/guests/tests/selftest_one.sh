# shellcheck shell=bash
# guests: 1
# ci: no
# limit_s: 120
# One host with two processes: its device is there, and READs go from one process to the other
# through the device, with queue pairs connected by hand and by the connection manager.
. tools/guests/lib.sh
. tools/guests/perftest.sh

ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE || fail "rxe0 has no active port"
for gid in "::ffff:$HOST_IP" "$HOST_IP6"; do
    ibv_devinfo -v -d rxe0 | grep -q "GID.*$gid, RoCE v2" || fail "no GID $gid"
done
is_listening() { [ "$(rdma_count cm_id)" = 1 ]; } # shows that what is counted below can be seen
for way in '' -R; do
    read_lat_server ${way:+"$way"} &
    [ -z "$way" ] || within 20 is_listening
    read_lat "by ${way:-hand}" "$HOST_IP" ${way:+"$way"}
    wait $!
done
for object in qp mr pd cq cm_id; do
    [ "$(rdma_count $object)" = 0 ] || fail "$object left: $(rdma resource show $object)"
done
