# sg3-utils against two LUNs, whose data is destroyed. PORTAL: where they are. IQN, IQN_OTHER: their
# targets.
#
# A check is a command and the exit status that it is to have (sg3_utils(8): 0 is no complaint). What
# it says goes to the console.

. /login
first=$disk
other="iscsiadm -m node -T $IQN_OTHER -p $PORTAL"
$other -o new
until_true 20 $other --login
find_other() {
    for path in /sys/class/iscsi_session/session*/device/target*/*/block/*; do
        second=/dev/${path##*/}
        [ "$second" != "$first" ] && [ -b "$second" ] && return 0
    done
    return 1
}
until_true 20 find_other

failed=''
done=0

# check NAME COMMAND...: it ends with 0. Its output is kept in /tmp/NAME.
check() {
    name=$1
    shift
    echo "== $name: $*"
    if "$@" >"/tmp/$name" 2>&1; then :; else
        echo "!! $name ended with $?"
        failed="$failed $name"
    fi
    cat "/tmp/$name"
    done=$((done + 1))
}

# says NAME PATTERN: the check's output has such a line.
says() {
    grep -qiE "$2" "/tmp/$1" || { echo "!! $1 does not say $2"; failed="$failed $1:says"; }
}

# silent_of NAME PATTERN: it has none.
silent_of() {
    if grep -iE "$2" "/tmp/$1"; then echo "!! $1 says $2"; failed="$failed $1:silent"; fi
}

# refused NAME STATUS COMMAND...: it ends with this status.
refused() {
    name=$1 wanted=$2
    shift 2
    echo "== $name: $*"
    status=0
    "$@" >"/tmp/$name" 2>&1 || status=$?
    cat "/tmp/$name"
    [ "$status" = "$wanted" ] || { echo "!! status $status, not $wanted"; failed="$failed $name"; }
    done=$((done + 1))
}

# Who it is and what it can do.
check inq sg_inq "$first"
says inq 'TPGS=3.*3PC=1|3PC=1'
check inq_descriptors sg_inq -d "$first"
silent_of inq_descriptors 'unexpected|unable'
check vpd_all sg_vpd -a "$first"
silent_of vpd_all 'malformed|too short|truncat|unexpected|fetching'
for page in sn di bl bdc lbpv ei mpp sp tpc; do
    check "vpd_$page" sg_vpd -p "$page" "$first"
done
check opcodes sg_opcodes "$first"
check opcodes_timeouts sg_opcodes --rctd "$first"
check opcodes_tmf sg_opcodes --tmf "$first"
check luns sg_luns "$first"
check turs sg_turs "$first"
check requests sg_requests "$first"
check readcap sg_readcap --16 "$first"
says readcap 'lbpme=1'
check modes sg_modes -a "$first"
check modes_6 sg_modes -6 -a "$first"
silent_of modes 'unexpected|malformed|truncat'
check logs_list sg_logs "$first"
check logs sg_logs -a "$first"
silent_of logs 'unexpected|malformed|truncat|bad'
check ident sg_ident "$first"
check timestamp sg_timestamp "$first"
check self_test sg_senddiag --test "$first"
check diagnostic_pages sg_senddiag --list "$first"
check buffer sg_test_rwbuf --size=4096 --times=2 "$first"
check buffer_descriptor sg_read_buffer --mode=desc "$first"
check defects sg_reassign --grown "$first"
check defects_12 sg_reassign --grown --primary "$first"
check security sg_raw --request=512 "$first" a2 00 00 00 00 00 00 00 02 00 00 00

# Reservations.
check pr_capabilities sg_persist --in --report-capabilities "$first"
check pr_register sg_persist --out --register --param-sark=123abc "$first"
check pr_reserve sg_persist --out --reserve --param-rk=123abc --prout-type=5 "$first"
check pr_keys sg_persist --in --read-keys "$first"
says pr_keys 0x123abc
check pr_reservation sg_persist --in --read-reservation "$first"
says pr_reservation 'Write Exclusive, registrants only'
check pr_full sg_persist --in --read-full-status "$first"
says pr_full 'iqn.2026-11.proof:guest'
check pr_release sg_persist --out --release --param-rk=123abc --prout-type=5 "$first"
check pr_clear sg_persist --out --clear --param-rk=123abc "$first"
check pr_none sg_persist --in --read-keys "$first"
says pr_none 'no registered'

# Asymmetric access.
check rtpg sg_rtpg --decode "$first"
says rtpg 'active/optimized'
check rtpg_extended sg_rtpg --extended --decode "$first"
check stpg sg_stpg --optimized --tp=1 "$first"

# Data: provisioning, atomicity, offload.
dd if=/dev/urandom of=/tmp/random bs=512 count=64 2>/dev/null
check write dd if=/tmp/random of="$first" bs=512 oflag=direct
check verify sg_verify --count=64 "$first"
check verify_data sg_verify --count=64 --ebytchk=1 --ndo=32768 --in=/tmp/random "$first"
check sync sg_sync "$first"
check lba_status sg_get_lba_status --lba=0 "$first"
says lba_status 'mapped'
check unmap sg_unmap --force --lba=8 --num=8 "$first"
check unmapped sg_get_lba_status --lba=8 "$first"
says unmapped 'deallocated'
check write_same sg_write_same --lba=16 --num=8 "$first"
check write_same_unmap sg_write_same --unmap --lba=24 --num=8 "$first"
check write_same_ndob sg_write_same --ndob --lba=32 --num=8 "$first"
dd if=/tmp/random of=/tmp/pair bs=512 count=1 2>/dev/null
dd if=/tmp/random of=/tmp/pair bs=512 count=1 seek=1 skip=1 2>/dev/null
check compare_and_write sg_compare_and_write --in=/tmp/pair --lba=0 --num=1 --xferlen=1024 "$first"
# SG_LIB_CAT_MISCOMPARE
refused miscompare 14 sg_compare_and_write --in=/tmp/pair --lba=0 --num=1 --xferlen=1024 "$first"
check write_atomic sg_write_x --atomic=0 --in=/tmp/random --lba=128 --num=64 "$first"
check or_write sg_write_x --or --in=/tmp/random --lba=256 --num=8 "$first"
check dd sg_dd if="$first" of=/dev/null bs=512 count=64
check xcopy_limits sg_copy_results --params "$first"
# It wants the sg devices.
sg_of() { echo "/dev/$(ls "/sys/class/block/${1#/dev/}/device/scsi_generic")"; }
check xcopy sg_xcopy if="$(sg_of "$first")" of="$(sg_of "$second")" bs=512 count=64
dd if="$first" of=/tmp/one bs=512 count=64 iflag=direct 2>/dev/null
dd if="$second" of=/tmp/two bs=512 count=64 iflag=direct 2>/dev/null
check copied cmp /tmp/one /tmp/two

# The whole medium.
check start sg_start --stop "$first"
check started sg_start --start "$first"
check format sg_format --format --quick --wait "$second"
check sanitize sg_sanitize --block --quick --wait "$second"
dd if="$second" of=/tmp/two bs=512 count=64 iflag=direct 2>/dev/null
head -c 32768 /dev/zero >/tmp/zeroes
check sanitized cmp /tmp/zeroes /tmp/two
check overwrite sg_sanitize --overwrite --pattern=/tmp/random --ipl=4 --quick --wait "$second"

echo "RESULT checks $done"
echo "RESULT failed ${failed:-none}"
$other --logout
log_out
# What the kernel did not like of the target itself.
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|reject|conn error|digest' || true)"
dmesg | tail -n 30
