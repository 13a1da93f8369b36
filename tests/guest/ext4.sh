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

. /file_system
live

log_out
echo 'RESULT logout done'

# What the kernel did not like: I/O errors, sense data, rejected PDUs, connections lost.
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|sense key|reject|conn error|digest' || true)"
dmesg | tail -n 30
