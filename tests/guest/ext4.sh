# A file system's life on a LUN: made, filled, checked, found equal after the caches are dropped.
# PORTAL, IQN: where the LUN is. HEADER_DIGEST, DATA_DIGEST: CRC32C or None.

configure_node() {
    $node -o update -n 'node.conn[0].iscsi.HeaderDigest' -v "$HEADER_DIGEST"
    $node -o update -n 'node.conn[0].iscsi.DataDigest' -v "$DATA_DIGEST"
}
. /login
echo "RESULT bytes $(($(cat /sys/class/block/${disk#/dev/}/size) * 512))"
cat /sys/class/iscsi_connection/connection*/header_digest | sed 's/^/RESULT header_digest /'
cat /sys/class/iscsi_connection/connection*/data_digest | sed 's/^/RESULT data_digest /'

checksum() { sha256sum "$1" | cut -d' ' -f1; }

mkfs.ext4 -q "$disk"
mount "$disk" /mnt
dd if=/dev/urandom of=/tmp/random bs=1M count=32 2>/dev/null
cp /tmp/random /mnt/kept
cp /tmp/random /mnt/dropped
echo "RESULT written $(checksum /tmp/random)"
sync
umount /mnt
e2fsck -f -n "$disk"
echo 'RESULT first_check clean'

echo 3 >/proc/sys/vm/drop_caches
mount "$disk" /mnt
echo "RESULT read $(checksum /mnt/kept)"

rm /mnt/dropped
sync
if fstrim /mnt; then echo 'RESULT trim done'; else echo 'RESULT trim refused'; fi
echo 3 >/proc/sys/vm/drop_caches
echo "RESULT read_after_trim $(checksum /mnt/kept)"
umount /mnt
e2fsck -f -n "$disk"
echo 'RESULT second_check clean'

log_out
echo 'RESULT logout done'

# What the kernel did not like: I/O errors, sense data, rejected PDUs, connections lost.
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|sense key|reject|conn error|digest' || true)"
dmesg | tail -n 30
