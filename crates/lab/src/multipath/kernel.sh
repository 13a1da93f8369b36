# The kernel's initiator (open-iscsi) and dm-multipath over several portals of a target, as the study configured them.
# TARGET, PORTALS: its name, and `address:port` of each portal. INTERVAL, TIMEOUT, REPLACEMENT: the timers in seconds.
. /storage

set -- $PORTALS
count=$#
paths_work() { [ "$(multipathd show paths raw format '%t %T %o' 2>/dev/null | grep -c 'active ready running')" = $count ]; }
map_exists() { map=$(multipathd show maps raw format %d) && [ -b "/dev/$map" ]; }

log_in() { $node --login >/run/login 2>&1; }

# set_up: logs in through all portals, and waits for the map of their paths.
set_up() {
    # multipathd finds paths through udevd, which is udevadm under another name.
    ln -s /bin/udevadm /run/systemd-udevd
    /run/systemd-udevd --daemon
    mkdir -p /etc/iscsi
    echo "InitiatorName=$IQN:client" >/etc/iscsi/initiatorname.iscsi
    iscsid
    for portal in $PORTALS; do
        node="iscsiadm -m node -T $TARGET -p $portal"
        $node -o new
        $node -o update -n 'node.conn[0].timeo.noop_out_interval' -v "$INTERVAL"
        $node -o update -n 'node.conn[0].timeo.noop_out_timeout' -v "$TIMEOUT"
        $node -o update -n node.session.timeo.replacement_timeout -v "$REPLACEMENT"
        until_true 20 log_in || { cat /run/login; return 1; }
    done
    cat >/etc/multipath.conf <<CONFIGURATION
defaults {
    find_multipaths yes
    user_friendly_names yes
    polling_interval 3
    path_grouping_policy multibus
    path_selector "round-robin 0"
    path_checker readsector0
    rr_min_io_rq 1000
    failback immediate
    no_path_retry 0
    fast_io_fail_tmo $REPLACEMENT
}
CONFIGURATION
    multipathd
    until_true 60 paths_work
    until_true 60 map_exists
}

written() { awk '{ print $7 }' "/sys/class/block/$map/stat"; }
has_written() { [ "$(written)" -gt "$1" ]; }

# begin_load SECONDS: begins to read and write, and returns when some data is written.
begin_load() {
    until_true 120 paths_work
    map_exists
    rm -f /run/result
    before=$(written)
    {
        /sarsen lab load "/dev/$map" --cache none --json --destroy --block-size 4KiB --read 50 --random 100 --depth 8 --warm-up 0 \
            --seconds "$1" --stall-limit "$1" >/run/result.new 2>/run/errors || cat /run/errors >>/run/result.new
        mv /run/result.new /run/result
    } &
    until_true 60 has_written $((before + 400)) || { cat /run/result*; return 1; }
}

# end_load SECONDS: prints the result.
end_load() {
    until_true "$1" test -e /run/result
    cat /run/result
}
