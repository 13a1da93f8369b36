# What sg3-utils makes of a LUN's pages, logs, buffers and self-tests.
# PORTAL, IQN: where the LUN is.

. /login

# check NAME COMMAND...: whether it succeeds; the console has what it says.
check() {
    name=$1
    shift
    echo "--- $*"
    if "$@"; then echo "RESULT $name passed"; else echo "RESULT $name failed $?"; fi
}

# found NAME PATTERN COMMAND...: the first line with the pattern of what it says.
found() {
    name=$1
    pattern=$2
    shift 2
    echo "--- $*"
    "$@" >/tmp/found 2>&1 || true
    cat /tmp/found
    line=$(grep -i -m 1 -e "$pattern" /tmp/found || true)
    echo "RESULT $name $(echo $line)"
}

check all_vpd sg_vpd -a "$disk"
found extended SIMPSUP sg_vpd -p ei "$disk"
found policy 'policy page code' sg_vpd -p mpp "$disk"
check opcodes sg_opcodes --rctd "$disk"
check task_management sg_opcodes --tmf "$disk"
check all_modes sg_modes -a -a "$disk"
check all_logs sg_logs -a "$disk"
found logs 'Informational' sg_logs "$disk"
found temperature 'urrent temperature' sg_logs -p temp "$disk"
found cycles 'ccumulated start-stop' sg_logs -p sscc "$disk"

check default_test sg_senddiag -t "$disk"
check short_test sg_senddiag -s 5 "$disk"
check diagnostics sg_senddiag -l "$disk"
found tested 'completed without' sg_logs -p str "$disk"
check logs_reset sg_logs --reset "$disk"

check defects sg_reassign --grown "$disk"
check reassigned sg_reassign --address=7 "$disk"
check shared_buffer sg_test_rwbuf --size=4096 --times=3 "$disk"
# Debian's sg_read_buffer asks for no bytes at all.
found echo_descriptor '01 00 10 00' sg_raw -r 4 "$disk" 3c 0b 00 00 00 00 00 00 04 00
printf 'an echo!' >/tmp/echo
check echo_written sg_raw -s 8 -i /tmp/echo "$disk" 3b 0a 00 00 00 00 00 00 08 00
found echo 'an echo!' sg_raw -r 4096 "$disk" 3c 0a 00 00 00 00 00 10 00 00
found security '00 00 00 00 00 00 00 01  00' sg_raw -r 255 "$disk" a2 00 00 00 00 00 00 00 00 ff 00 00

check clock_set sg_timestamp --milliseconds=86400000 "$disk"
found clock '^86400' sg_timestamp "$disk"
printf 'rack 7' | check identified sg_ident --set "$disk"
found identity 'rack' sg_ident --ascii "$disk"

# SWP, saved.
check protected sg_wr_mode -p a -s -c a,a,0,10,8,0,0,0,ff,ff,0,78 "$disk"
found swp '8a 0a' sg_modes -c 3 -p 0xa "$disk"
if dd if=/dev/zero of="$disk" bs=4096 count=1 oflag=direct 2>/dev/null; then
    echo 'RESULT write done'
else
    echo 'RESULT write refused'
fi
check reverted sg_wr_mode --rtd -s "$disk"
check written dd if=/dev/zero of="$disk" bs=4096 count=1 oflag=direct
log_out
