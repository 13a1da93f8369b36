# A file system on a LUN, and bonnie++ on it.
# PORTAL, IQN: where the LUN is. RUNS: how often.

# until_true SECONDS COMMAND...: asks again until it holds.
until_true() {
    tenths=$(($1 * 10))
    shift
    until "$@"; do
        tenths=$((tenths - 1))
        [ "$tenths" -gt 0 ] || { echo "gave up waiting for: $*"; return 1; }
        sleep 0.1
    done
}

mkdir -p /etc/iscsi
echo 'InitiatorName=iqn.2026-11.proof:guest' >/etc/iscsi/initiatorname.iscsi
iscsid

node="iscsiadm -m node -T $IQN -p $PORTAL"
$node -o new
until_true 20 $node --login

find_disk() {
    for path in /sys/class/iscsi_session/session*/device/target*/*/block/*; do
        disk=/dev/${path##*/}
        [ -b "$disk" ] && return 0
    done
    return 1
}
until_true 20 find_disk

mkfs.ext4 -q "$disk"
mount "$disk" /mnt
# bonnie++ syncs each file when it closes it, so that all of it reaches the LUN. Byte by byte it
# writes only 1 MiB: each costs a system call, and emulation makes these slow.
bonnie++ -q -d /mnt -u root -s 32 -r 16 -n 1 -f1 -x "$RUNS" -m guest >/tmp/bonnie.csv
number=0
while read -r line; do
    echo "RESULT line_$number $line"
    number=$((number + 1))
done </tmp/bonnie.csv
echo "RESULT lines $number"
umount /mnt
e2fsck -f -n "$disk"

$node --logout
gone() { ! ls -d /sys/class/iscsi_session/session* >/dev/null 2>&1; }
until_true 20 gone
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|sense key|reject|conn error|digest' || true)"
dmesg | tail -n 30
