# CHAP both ways, with both digests: what is written is read again, and whoever has another secret, the
# host or the target, is not met.
# PORTAL, IQN: where the LUN is. USER, SECRET, TARGET_USER, TARGET_SECRET: who meets there.

set_key() { $node -o update -n "$1" -v "$2"; }
configure_node() {
    set_key node.session.auth.authmethod CHAP
    set_key node.session.auth.chap_algs SHA3-256,SHA256,SHA1,MD5
    set_key node.session.auth.username "$USER"
    set_key node.session.auth.password "$SECRET"
    set_key node.session.auth.username_in "$TARGET_USER"
    set_key node.session.auth.password_in "$TARGET_SECRET"
    set_key 'node.conn[0].iscsi.HeaderDigest' CRC32C
    set_key 'node.conn[0].iscsi.DataDigest' CRC32C
}
. /login
cat /sys/class/iscsi_connection/connection*/header_digest | sed 's/^/RESULT header_digest /'
cat /sys/class/iscsi_connection/connection*/data_digest | sed 's/^/RESULT data_digest /'
cat /sys/class/iscsi_session/session*/username | sed 's/^/RESULT username /'
cat /sys/class/iscsi_session/session*/username_in | sed 's/^/RESULT username_in /'

checksum() { sha256sum | cut -d' ' -f1; }

dd if=/dev/urandom of=/tmp/random bs=1M count=16 2>/dev/null
echo "RESULT written $(checksum </tmp/random)"
dd if=/tmp/random of="$disk" bs=1M oflag=direct 2>/dev/null
echo "RESULT read $(dd if="$disk" bs=1M count=16 iflag=direct 2>/dev/null | checksum)"
log_out

# try NAME: what a login ends with.
try() {
    if $node --login; then
        echo "RESULT $1 in"
        log_out
    else
        echo "RESULT $1 refused with $?"
    fi
}

set_key node.session.auth.password 'of another host'
try wrong_secret
set_key node.session.auth.password "$SECRET"
set_key node.session.auth.password_in 'of another target'
try wrong_target
set_key node.session.auth.password_in "$TARGET_SECRET"
try right_again
# open-iscsi uses credentials that it has, whatever the method: nobody is who has none.
$node -o delete
$node -o new
try nobody
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|sense key|reject|digest' || true)"
dmesg | tail -n 30
