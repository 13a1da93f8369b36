# Two file systems on volumes of a pool whose device logs its writes (dm-log-writes): the server runs in here, its pool is
# on /dev/vda, the log on /dev/vdb. ext4 comes by the kernel's NBD client, xfs by its iSCSI initiator.
# FILES: how many files each file system gets. SIZE_E, SIZE_X: MiB of the volumes. PORTAL, IQN: where xfs is.
# A mark in the log says what a file had when its fsync was answered; a mark before says that it begins to change.

# The name that the kernel gives: there is no udev.
device=/dev/dm-0
dmsetup create logged --noudevsync \
    --table "0 $(cat /sys/class/block/vda/size) log-writes /dev/vda /dev/vdb"
mark() { dmsetup message logged 0 mark "$1"; }

/sarsen pool create tank --offline --device $device
mark created
export SARSEN_CONTROL=/run/control.sock
/sarsen serve --pool "tank=$device,cache=none" --listen "$PORTAL" --listen-nbd 127.0.0.1:10809 \
    --volume "e=pool:tank,size=${SIZE_E}MiB" --volume "x=pool:tank,size=${SIZE_X}MiB" \
    --control $SARSEN_CONTROL >/tmp/announced 2>/tmp/log &
server=$!
until [ -s /tmp/announced ]; do sleep 0.1; done
mark served

nbd-client 127.0.0.1 10809 /dev/nbd0 -N e
until [ "$(cat /sys/class/block/nbd0/size)" -gt 0 ]; do sleep 0.1; done
. /login

mkdir -p /mnt/e /mnt/x
mkfs.ext4 -q -J size=4 /dev/nbd0
mount /dev/nbd0 /mnt/e
sync
mark "e:made"
# No discard of the whole volume, and the smallest log.
mkfs.xfs -q -K "$disk"
mount "$disk" /mnt/x
sync
mark "x:made"

contents() { sha256sum "$1" | cut -d' ' -f1; }
# create FILE_SYSTEM NAME KIB
create() {
    mark "$1:open:$2"
    dd if=/dev/urandom of="/mnt/$1/$2" bs=1k count="$3" conv=fsync 2>/dev/null
    mark "$1:$(contents "/mnt/$1/$2"):$2"
}
# overwrite FILE_SYSTEM NAME FIRST_KIB KIB
overwrite() {
    mark "$1:open:$2"
    dd if=/dev/urandom of="/mnt/$1/$2" bs=1k seek="$3" count="$4" conv=notrunc,fsync 2>/dev/null
    mark "$1:$(contents "/mnt/$1/$2"):$2"
}
# remove FILE_SYSTEM NAME
remove() {
    mark "$1:open:$2"
    rm "/mnt/$1/$2"
    sync
    mark "$1:gone:$2"
}
work() {
    number=1
    while [ $number -le "$FILES" ]; do
        create "$1" "f$number" $((number * 37 % 61 + 8))
        [ $((number % 3)) != 0 ] || overwrite "$1" "f$((number - 1))" 3 5
        [ $((number % 4)) != 0 ] || remove "$1" "f$((number - 3))"
        if [ "$1" = e ] && [ $((number * 2)) = "$FILES" ]; then
            /sarsen snapshot create e@half x@half
            mark snapshot:half
        fi
        number=$((number + 1))
    done
}
work e &
first=$!
work x &
second=$!
wait $first
wait $second
echo "RESULT worked $(cut -d' ' -f1 /proc/uptime)"

umount /mnt/e /mnt/x
nbd-client -d /dev/nbd0
log_out
kill $server
wait $server
mark ended
dmsetup remove --noudevsync logged
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|sense key|corrupt|nbd0: .*(error|timed out|fail)' || true)"
cat /tmp/log
