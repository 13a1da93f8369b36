# What a guest does after its boot: the network, the scenario.
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2

. /environment
# A guest that boots from a disk mounts it, and then runs the init on that disk.
if [ -n "${ROOT:-}" ]; then
    until [ -b "$ROOT" ]; do sleep 0.1; done
    mount -o discard "$ROOT" /mnt
    for folder in dev proc sys run; do mount --move "/$folder" "/mnt/$folder"; done
    exec switch_root /mnt /init
fi
/bin/sh -eu /scenario
status=$?
[ "$status" = 0 ] || dmesg | tail -n 30
echo "RESULT status $status"
