# A kernel mounts what file systems had at many moments, so that their own recovery runs, reads all files and checks them.
# /dev/vda has their images; /images says where: number, type, first sector, sectors.

while read -r number type first sectors; do
    dmsetup create image --noudevsync --table "0 $sectors linear /dev/vda $first"
    disk=/dev/dm-0
    mount -t "$type" $disk /mnt
    for file in /mnt/f*; do
        [ ! -f "$file" ] || echo "RESULT $number/${file#/mnt/} $(sha256sum "$file" | cut -d' ' -f1)"
    done
    umount /mnt
    case $type in
    ext4) e2fsck -f -n $disk ;;
    xfs) xfs_repair -n $disk ;;
    esac >/tmp/check 2>&1 || { cat /tmp/check; echo "RESULT unsound $number"; }
    echo "RESULT $number/checked $type"
    dmsetup remove --noudevsync image
done </images
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|fs error|corrupt|shutting down' || true)"
