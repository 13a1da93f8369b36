# A real SCSI device, as far as this machine has one, is served and found again by the kernel's own
# initiator on the loopback: what is written by the one way is read by the other.
# IQN, PORTAL: what the server will offer, and where. SERVER: how it is started.

sh -c "$SERVER" >/tmp/announced 2>/tmp/log &
until grep -q "$IQN" /tmp/announced; do sleep 0.1; done
real=/dev/sda
. /login

checksum() { sha256sum | cut -d' ' -f1; }
told_by() { cat "/sys/class/block/${1#/dev/}/device/$2" | tr -d ' '; }
for path in "$real" "$disk"; do
    echo "RESULT ${path#/dev/}_vendor $(told_by "$path" vendor)"
    echo "RESULT ${path#/dev/}_model $(told_by "$path" model)"
    echo "RESULT ${path#/dev/}_bytes $(($(cat "/sys/class/block/${path#/dev/}/size") * 512))"
    echo "RESULT ${path#/dev/}_serial $(sg_vpd --page=sn "$path" | tail -n 1 | tr -d ' ')"
done
echo "RESULT served ${disk#/dev/}"

dd if=/dev/urandom of=/tmp/random bs=1M count=8 2>/dev/null
echo "RESULT written $(checksum </tmp/random)"
dd if=/tmp/random of="$disk" bs=256k oflag=direct 2>/dev/null
echo "RESULT read $(dd if="$real" bs=256k count=32 iflag=direct 2>/dev/null | checksum)"
echo "RESULT read_by_the_same_way $(dd if="$disk" bs=256k count=32 iflag=direct 2>/dev/null | checksum)"
dd if=/tmp/random of="$real" bs=256k seek=64 oflag=direct 2>/dev/null
echo "RESULT read_back $(dd if="$disk" bs=256k skip=64 count=32 iflag=direct 2>/dev/null | checksum)"

# Beyond the last block: the device's own sense data.
sg_raw -r 512 "$disk" 28 00 ff ff ff f0 00 00 01 00 >/tmp/served 2>&1 || true
sg_raw -r 512 "$real" 28 00 ff ff ff f0 00 00 01 00 >/tmp/real 2>&1 || true
echo "RESULT sense $(grep -c 'block address out of range' /tmp/served || true)"
if cmp -s /tmp/served /tmp/real; then echo 'RESULT sense_alike yes'; else echo 'RESULT sense_alike no'; fi
cat /tmp/served /tmp/real
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|sense key|reject|conn error' || true)"
log_out
cat /tmp/log
