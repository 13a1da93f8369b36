# What scenarios share: `live` is a file system's life on $disk: made, filled, checked, found equal after the caches are
# dropped, trimmed. `measure` reports the rates of random reads and writes.

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

# measure NAME ROUND DISK: as RESULT NAME/DEPTH/PERCENTAGE_OF_READS/ROUND.
measure() {
    for depth in 1 16; do
        for read in 0 100; do
            /sarsen lab load --cache none --block-size 4KiB --read $read --random 100 --depth $depth --seconds 2 --destroy \
                --json "$3" 2>/dev/null | sed -n "s,.*\"iops\":\([0-9]*\).*,RESULT $1/$depth/$read/$2 \1,p"
        done
    done
}
