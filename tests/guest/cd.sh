# A disc is mounted and read, its drive is asked what it is, and the tray is opened and closed.
# PORTAL, IQN: where the CD is, for the kernel's own initiator. Without them the guest was booted
# from a CD that some controller has.

cd=/dev/sr0
if [ -n "${IQN:-}" ]; then
    . /login
fi
until [ -b "$cd" ]; do sleep 0.1; done

checksum() { sha256sum "$1" | cut -d' ' -f1; }
complaints() { dmesg | grep -icE 'i/o error|sense key|reject|conn error|digest|unaligned' || true; }
# quietly NAME COMMAND...: tells whether it succeeded.
quietly() {
    name=$1
    shift
    if "$@" >/tmp/said 2>&1; then echo "RESULT $name yes"; else echo "RESULT $name no"; cat /tmp/said; fi
}

device=/sys/class/block/${cd#/dev/}
echo "RESULT model $(cat "$device/device/vendor" "$device/device/model" | tr -s ' \n' ' ')"
echo "RESULT bytes $(($(cat "$device/size") * 512))"
echo "RESULT drive $(grep -cE '^(Can close tray|Can open tray|Can lock tray|Can read DVD):[[:space:]]+1' /proc/sys/dev/cdrom/info)"

mount -t iso9660 -o ro "$cd" /mnt
echo "RESULT read $(checksum /mnt/payload)"
# The kernel keeps the tray closed while the disc is in use, whoever wants it out.
quietly ejected_in_use sg_start --eject "$cd"
umount /mnt

quietly configuration sg_get_config "$cd"
quietly inquiry sg_inq "$cd"
quietly pages sg_vpd "$cd"
quietly modes sg_modes --all "$cd"
quietly capacity sg_readcap "$cd"
quietly opcodes sg_opcodes "$cd"
quietly ready sg_turs "$cd"
# The whole table of contents, and the disc's and the track's information.
quietly toc sg_raw -r 804 "$cd" 43 02 02 00 00 00 01 03 24 00
quietly disc sg_raw -r 34 "$cd" 51 00 00 00 00 00 00 00 22 00
quietly track sg_raw -r 36 "$cd" 52 01 00 00 00 01 00 00 24 00
quietly events sg_raw -r 8 "$cd" 4a 01 00 00 10 00 00 00 08 00
echo "RESULT complaints $(complaints)"

quietly ejected eject "$cd"
quietly ready_when_open sg_turs "$cd"
# Linux closes the tray by itself for whoever wants to read.
quietly closed_by_reading dd if="$cd" of=/dev/null bs=2048 count=1
quietly ejected_again eject "$cd"
quietly loaded eject -t "$cd"
mount -t iso9660 -o ro "$cd" /mnt
echo "RESULT read_again $(checksum /mnt/payload)"
umount /mnt
if [ -n "${IQN:-}" ]; then
    log_out
fi
dmesg | tail -n 30
