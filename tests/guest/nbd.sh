# A file system's life on an NBD export that the kernel reaches by four connections.
# SERVER, PORT, EXPORT: where the export is.

. /file_system

nbd-client "$SERVER" "$PORT" /dev/nbd0 -N "$EXPORT" -C 4
disk=/dev/nbd0
until [ "$(cat /sys/class/block/nbd0/size)" -gt 0 ]; do sleep 0.1; done
echo "RESULT bytes $(($(cat /sys/class/block/nbd0/size) * 512))"
echo "RESULT connections $(netstat -tn | grep -c "$SERVER:$PORT *ESTABLISHED")"

live

nbd-client -d "$disk"
echo 'RESULT disconnect done'
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|nbd0: .*(error|timed out|fail)' || true)"
dmesg | tail -n 30
