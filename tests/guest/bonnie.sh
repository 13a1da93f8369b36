# A file system on a LUN, and bonnie++ on it.
# PORTAL, IQN: where the LUN is. RUNS: how often.

. /login

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

log_out
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|sense key|reject|conn error|digest' || true)"
dmesg | tail -n 30
