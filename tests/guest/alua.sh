# scsi_dh_alua on a unit that is reached through two portal groups.
# IQN; PORTAL and PORTAL_2: `address:port,tag`. The tags are 1 and 2.

. /login
second="iscsiadm -m node -T $IQN -p $PORTAL_2"
$second -o new
until_true 20 $second --login

# disk_of PORTAL: sets $found to the disk that came through it, sdX.
disk_of() {
    port=${1##*:}
    for connection in /sys/class/iscsi_connection/connection*; do
        [ "$(cat "$connection/persistent_port")" = "${port%,*}" ] || continue
        number=${connection##*/connection}
        for path in "/sys/class/iscsi_session/session${number%:*}"/device/target*/*/block/*; do
            found=${path##*/}
            [ -b "/dev/$found" ] && return 0
        done
    done
    return 1
}
until_true 20 disk_of "$PORTAL"
one=$found
until_true 20 disk_of "$PORTAL_2"
two=$found

# is DISK FILE VALUE: what the kernel says of a disk's device.
is() { [ "$(cat "/sys/block/$1/device/$2" 2>/dev/null)" = "$3" ]; }

# The handler asks for the states on its own time.
until_true 20 is "$one" access_state active/optimized
until_true 20 is "$two" access_state active/non-optimized
echo "RESULT handlers $(cat /sys/block/sd*/device/dh_state | sort -u)"
echo "RESULT preferred $(cat "/sys/block/$one/device/preferred_path") $(cat "/sys/block/$two/device/preferred_path")"
echo "RESULT groups $(dmesg | grep -o 'alua: .*port group [0-9]* rel port [0-9]*' | sed 's/.*port group/port group/' | sort -u | tr '\n' ';')"

sg_rtpg --extended --decode "/dev/$one"
echo "RESULT write $(dd if=/dev/urandom of="/dev/$two" bs=4096 count=16 2>/dev/null && echo done)"

# By the first path; the second learns of it from the unit attention of its next command.
sg_stpg --standby --tp=2 "/dev/$one"
sg_turs "/dev/$two" || true
until_true 20 is "$two" access_state standby
echo 'RESULT standby seen'
# A path in standby says so, and the other one reads on.
if sg_turs "/dev/$two"; then echo 'RESULT standby_ready yes'; else echo 'RESULT standby_ready no'; fi
echo "RESULT read $(dd if="/dev/$one" of=/dev/null bs=4096 count=16 iflag=direct 2>/dev/null && echo done)"

sg_stpg --offline --tp=2 "/dev/$one"
sg_turs "/dev/$two" || true
until_true 20 is "$two" access_state offline
echo 'RESULT offline seen'
sg_stpg --optimized --tp=2 "/dev/$one"
sg_turs "/dev/$two" || true
until_true 20 is "$two" access_state active/optimized
echo "RESULT read_again $(dd if="/dev/$two" of=/dev/null bs=4096 count=16 iflag=direct 2>/dev/null && echo done)"

$second --logout
log_out
dmesg | tail -n 40
