# The life of a disk that its machine gets through a socket (vhost-user-blk). The server and the process of the disk run on the host, which
# ends that process while fio writes and verifies, and then makes the volume larger.

. /file_system

disk=/dev/vda
name=vda
size() { echo $(($(cat "/sys/class/block/$name/size") * 512)); }
echo "RESULT bytes $(size)"
echo "RESULT identifier $(cat /sys/class/block/$name/serial)"
live

# The whole disk is deallocated, and reads as zeroes.
blkdiscard "$disk"
[ "$(dd if="$disk" bs=1M 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] && echo 'RESULT discarded zeroes'

mkfs.ext4 -q "$disk"
mount "$disk" /mnt
echo 'RESULT load begins'
fio --name=verify --directory=/mnt --size=32m --loops=2 --rw=randwrite --bs=4k --ioengine=libaio --direct=1 --iodepth=16 \
    --verify=crc32c --verify_fatal=1 --eta=never --output=/tmp/fio &
fio=$!
written_sectors() { awk '{ print $7 }' "/sys/class/block/$name/stat"; }
part=0
while kill -0 $fio 2>/dev/null; do
    before=$(written_sectors)
    until [ "$(written_sectors)" -gt $((before + 800)) ] || ! kill -0 $fio 2>/dev/null; do sleep 0.1; done
    part=$((part + 1))
    echo "RESULT part$part written"
done
if wait $fio; then echo 'RESULT fio verified'; else echo 'RESULT fio failed'; cat /tmp/fio; fi
umount /mnt
e2fsck -f -n "$disk" && echo 'RESULT check clean'

echo 'RESULT size waits'
tenths=200
until [ "$(size)" = "$GROWN" ] || [ $tenths = 0 ]; do sleep 0.1; tenths=$((tenths - 1)); done
echo "RESULT grown $(size)"
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|ext4.*error|blocked for more' || true)"
dmesg | tail -n 40
