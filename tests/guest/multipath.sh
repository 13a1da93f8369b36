# dm-multipath over two paths to one unit, with a drop-in, and with open-iscsi's timers as the guide sets them. The host interrupts the
# first path while fio writes over both: the longest latency of a write is the time of the failover.
# IQN; PORTAL and PORTAL_2: `address:port`. CASES: names of the failovers, one for each. REPLACEMENT_TIMEOUT: that of the sessions.

# multipathd finds paths through udevd, which is udevadm under another name.
ln -s /bin/udevadm /run/systemd-udevd
/run/systemd-udevd --daemon

configure_node() {
    $node -o update -n 'node.conn[0].timeo.noop_out_interval' -v 1
    $node -o update -n 'node.conn[0].timeo.noop_out_timeout' -v 1
    $node -o update -n node.session.timeo.replacement_timeout -v "$REPLACEMENT_TIMEOUT"
}
. /login
first=$node
node="iscsiadm -m node -T $IQN -p $PORTAL_2"
$node -o new
configure_node
until_true 20 $node --login

printf 'defaults {\n find_multipaths yes\n}\n' >/etc/multipath.conf
multipathd
paths() { multipathd show paths raw format '%d %t %T %o' 2>/dev/null; }
both_paths_work() { [ "$(paths | grep -c 'active ready running')" = 2 ]; }
until_true 60 both_paths_work || { paths; multipathd show config local; exit 1; }
map_exists() { map=$(multipathd show maps raw format %d) && [ -b "/dev/$map" ]; }
until_true 60 map_exists
echo "RESULT map $map"
echo "RESULT recovery $(cat /sys/class/iscsi_session/session*/recovery_tmo | sort -u | tr '\n' ' ')"
multipathd show topology

written_sectors() { awk '{ print $7 }' "/sys/class/block/$map/stat"; }
index=0
for case in $CASES; do
    index=$((index + 1))
    until_true 120 both_paths_work || { paths; exit 1; }
    fio --name=failover --filename="/dev/$map" --rw=randwrite --bs=4k --ioengine=libaio --direct=1 --iodepth=4 --size=16m --time_based --runtime=10 \
        --eta=never --output-format=json --output=/tmp/fio &
    fio=$!
    before=$(written_sectors)
    until [ "$(written_sectors)" -gt $((before + 400)) ]; do sleep 0.1; done
    echo "RESULT started$index $case"
    if wait $fio; then echo "RESULT fio$index done"; else echo "RESULT fio$index failed"; fi
    # In milliseconds.
    longest=$(sed -n '/"clat_ns"/,/}/s/.*"max" : \([0-9]*\).*/\1/p' /tmp/fio | sort -n | tail -n 1)
    paths
    echo "RESULT failover$index $((longest / 1000000))"
done
until_true 120 both_paths_work || { paths; exit 1; }
multipath -F || true
multipathd shutdown
$node --logout
$first --logout
echo "RESULT complaints $(dmesg | grep -ic 'buffer i/o error' || true)"
dmesg | tail -n 60
