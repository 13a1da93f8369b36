# How the disks of a virtual machine compare with its kernel's own iSCSI initiator: QEMU has one as vhost-user-blk, one through its
# client of NBD sockets, and one through its own iSCSI initiator. The server and the processes of the disks run on the host.
# ROUNDS: how often each measurement is repeated. IQN, PORTAL: the unit of the kernel's initiator.

. /file_system
. /login

# disk_with SERIAL
disk_with() {
    for serial in /sys/class/block/vd*/serial; do
        [ "$(cat "$serial")" = "$1" ] || continue
        serial=${serial%/serial}
        echo "/dev/${serial##*/}"
    done
}

round=1
while [ $round -le "$ROUNDS" ]; do
    for name in vhost nbd libiscsi; do measure $name $round "$(disk_with $name)"; done
    measure kernel $round "$disk"
    round=$((round + 1))
done

log_out
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|blocked for more' || true)"
