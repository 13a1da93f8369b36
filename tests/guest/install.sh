# Creates a disk for another guest to boot from, with the guest's programs and an init. DISK: the disk.
until [ -b "$DISK" ]; do sleep 0.1; done
echo "RESULT block_bytes $(cat /sys/block/${DISK#/dev/}/queue/logical_block_size)"
echo "RESULT discard_bytes $(cat /sys/block/${DISK#/dev/}/queue/discard_max_bytes)"
mkfs.ext4 -q "$DISK"
mount -o discard "$DISK" /mnt
for folder in dev proc sys run tmp; do mkdir "/mnt/$folder"; done
for folder in bin sbin lib lib64 usr etc applets; do
    [ ! -e "/$folder" ] || cp -a "/$folder" /mnt/
done
cat >/mnt/init <<'INIT'
#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/applets
checksum() { sha256sum "$1" | cut -d' ' -f1; }
life() {
    set -eu
    echo "RESULT root $(grep -c ' / ext4 .*discard' /proc/mounts)"
    dd if=/dev/urandom of=/kept bs=1M count=24 2>/dev/null
    cp /kept /dropped
    sync
    echo "RESULT written $(checksum /kept)"
    rm /dropped
    sync
    fstrim / && echo 'RESULT trim done'
    echo 3 >/proc/sys/vm/drop_caches
    echo "RESULT read $(checksum /kept)"
    cp /kept /again
    sync
    echo 3 >/proc/sys/vm/drop_caches
    echo "RESULT copied $(checksum /again)"
    mount -o remount,ro /
    echo "RESULT complaints $(dmesg | grep -icE 'i/o error|sense key|ext4-fs error' || true)"
}
(life)
echo "RESULT status $?"
dmesg | tail -n 20
poweroff -f
INIT
chmod 755 /mnt/init
umount /mnt
e2fsck -f -n "$DISK"
echo 'RESULT installed done'
