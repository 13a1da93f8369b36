# What scenarios share: `. /login` logs in to IQN at PORTAL and sets $node (iscsiadm with its record)
# and $disk (the first disk that came with it).

# until_true SECONDS COMMAND...: asks again until it holds.
until_true() {
    tenths=$(($1 * 10))
    shift
    until "$@"; do
        tenths=$((tenths - 1))
        [ "$tenths" -gt 0 ] || { echo "gave up waiting for: $*"; return 1; }
        sleep 0.1
    done
}

# configure_node: what a scenario wants to set before the login; it may define its own.
command -v configure_node >/dev/null || configure_node() { :; }

mkdir -p /etc/iscsi
echo 'InitiatorName=iqn.2026-11.proof:guest' >/etc/iscsi/initiatorname.iscsi
iscsid

node="iscsiadm -m node -T $IQN -p $PORTAL"
$node -o new
configure_node
until_true 20 $node --login

find_disk() {
    for path in /sys/class/iscsi_session/session*/device/target*/*/block/*; do
        disk=/dev/${path##*/}
        [ -b "$disk" ] && return 0
    done
    return 1
}
until_true 20 find_disk

log_out() {
    $node --logout
    until_true 20 gone
}
gone() { ! ls -d /sys/class/iscsi_session/session* >/dev/null 2>&1; }
