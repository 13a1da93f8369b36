# What scenarios share: `live` is a file system's life on $disk: made, filled, checked, found equal after the caches are
# dropped, trimmed.

checksum() { sha256sum "$1" | cut -d' ' -f1; }

live() {
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
}
