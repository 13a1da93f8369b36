# The life of a disk that the program attaches: KIND. The server runs in the guest, too.
# The process of the disk is killed, and ended in order, while fio writes and verifies: the disk must report no error.

. /file_system

echo 00112233445566778899aabbccddeeff >/etc/machine-id
export SARSEN_CONTROL=/run/control.sock
/sarsen serve --state /run/state --control $SARSEN_CONTROL --listen 127.0.0.1:3260 >/tmp/announced 2>/tmp/server.log &
server=$!
until [ -S $SARSEN_CONTROL ]; do sleep 0.1; done
/sarsen volume create data 128MiB --store ram --export
url=iscsi://127.0.0.1/$(/sarsen target list --json | sed 's/.*"name":"\([^"]*\)".*/\1/')/0

disk=$(/sarsen attach "$url" --as "$KIND")
echo "RESULT disk $disk"
[ "$(readlink /dev/sarsen/data)" = "$disk" ] && echo 'RESULT link made'
name=${disk#/dev/}
size() { echo $(($(cat "/sys/class/block/$name/size") * 512)); }
echo "RESULT bytes $(size)"
live

# The whole disk is deallocated, and reads as zeroes.
blkdiscard "$disk"
[ "$(dd if="$disk" bs=1M 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] && echo 'RESULT discarded zeroes'

# A disk in use stays.
mkfs.ext4 -q "$disk"
mount "$disk" /mnt
if /sarsen detach data 2>/tmp/refused; then echo 'RESULT detach_in_use detached'; else echo "RESULT detach_in_use refused with $?"; fi
cat /tmp/refused

process() { /sarsen attachments --json | sed 's/.*"process":\([0-9]*\).*/\1/'; }
fio --name=verify --directory=/mnt --size=16m --rw=randwrite --bs=4k --ioengine=libaio --direct=1 --iodepth=16 \
    --verify=crc32c --verify_fatal=1 --eta=never --output=/tmp/fio &
fio=$!
ended=0
written_sectors() { awk '{ print $7 }' "/sys/class/block/$name/stat"; }
for signal in KILL TERM KILL TERM; do
    # Some requests pass between two restarts.
    before=$(written_sectors)
    until [ "$(written_sectors)" -gt $((before + 800)) ] || ! kill -0 $fio 2>/dev/null; do sleep 0.1; done
    if ! kill -0 $fio 2>/dev/null; then break; fi
    old=$(process)
    kill -$signal "$old"
    while kill -0 "$old" 2>/dev/null; do sleep 0.1; done
    [ "$(/sarsen attachments | grep -c 'waits for its process')" = 1 ] || echo 'nothing waits'
    /sarsen attach data
    ended=$((ended + 1))
done
if wait $fio; then echo 'RESULT fio verified'; else echo 'RESULT fio failed'; cat /tmp/fio; fi
echo "RESULT restarts $ended"
umount /mnt
e2fsck -f -n "$disk" && echo 'RESULT check clean'

# The size follows that of the volume.
/sarsen volume resize data 192MiB
tenths=50
until [ "$(size)" = $((192 * 1024 * 1024)) ] || [ $tenths = 0 ]; do sleep 0.1; tenths=$((tenths - 1)); done
echo "RESULT grown $(size)"

/sarsen attachments
cat /run/sarsen-attachments/data/log
/sarsen detach "$disk"
echo "RESULT left $(ls /run/sarsen-attachments | wc -l)"
[ -e /dev/sarsen/data ] || echo 'RESULT unlinked yes'
kill $server
wait $server
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|ext4.*error|blocked for more' || true)"
dmesg | tail -n 40
