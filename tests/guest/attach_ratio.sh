# How disks of the program compare with the kernel's own iSCSI initiator: one server in the guest, a volume for each kind, measured
# in turn by one program.
# ROUNDS: how often each measurement is repeated.

. /file_system

echo 00112233445566778899aabbccddeeff >/etc/machine-id
export SARSEN_CONTROL=/run/control.sock
/sarsen serve --state /run/state --control $SARSEN_CONTROL --listen 127.0.0.1:3260 >/tmp/announced 2>/tmp/server.log &
server=$!
until [ -S $SARSEN_CONTROL ]; do sleep 0.1; done
for name in ublk nbd kernel; do /sarsen volume create $name 64MiB --store ram --export; done
prefix=$(/sarsen target list --json | sed 's/.*"name":"\([^"]*\):kernel".*/\1/')
ublk=$(/sarsen attach "iscsi://127.0.0.1/$prefix:ublk/0" --as ublk)
nbd=$(/sarsen attach "iscsi://127.0.0.1/$prefix:nbd/0" --as nbd)
IQN=$prefix:kernel PORTAL=127.0.0.1:3260
. /login

round=1
while [ $round -le "$ROUNDS" ]; do
    measure ublk $round "$ublk"
    measure nbd $round "$nbd"
    measure kernel $round "$disk"
    round=$((round + 1))
done

log_out
/sarsen detach ublk
/sarsen detach nbd
kill $server
wait $server
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|blocked for more' || true)"
