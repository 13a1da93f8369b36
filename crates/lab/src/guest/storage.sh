# What the scripts of studies do in guests. A server serves its disks with `serve_PROTOCOL COUNT`; the client of a number then gets a
# disk of its own with `attach_PROTOCOL NUMBER`, or has a file system at /mnt after `mount_PROTOCOL NUMBER`. SERVER: its address; those
# of the clients follow.

IQN=iqn.2026-11.io.sarsen

# until_true SECONDS COMMAND...: asks again until it holds.
until_true() {
    tenths=$(($1 * 10))
    shift
    until "$@"; do
        tenths=$((tenths - 1))
        [ "$tenths" -gt 0 ] || { echo "gave up waiting for: $*"; cat /run/programs/log || true; return 1; }
        sleep 0.1
    done
}

# own_disk NUMBER: prints the device.
own_disk() { echo "/dev/vd$(echo abcdefghijklmnopqrstuvwxyz | cut -c "$1")"; }

# begin COMMAND...: starts a server's program.
begin() {
    mkdir -p /run/programs
    "$@" >>/run/programs/log 2>&1 &
    echo $! >>/run/programs/pids
}

# end: ends the programs of `begin`.
end() {
    [ -e /run/programs/pids ] || return 0
    while read -r pid; do
        kill "$pid" 2>/dev/null || true
        # tgtd does not end while it has targets.
        until_true 2 ended "$pid" >/dev/null || kill -9 "$pid"
    done </run/programs/pids
    rm -r /run/programs
}
ended() { ! kill -0 "$1" 2>/dev/null || grep -q '^State:.Z' "/proc/$1/status"; }
listens() { netstat -tln | grep -q ":$1 "; }

is_mounted() { grep -q " $1 " /proc/mounts; }

numbers() { seq 1 "$1"; }

# create_file_system DEVICE: that of FILE_SYSTEM, or ext4. The kernel completes nothing of it in the background, which would disturb
# measurements.
create_file_system() {
    case ${FILE_SYSTEM:-ext4} in
        ext4) mkfs.ext4 -q -F -N 8192 -E nodiscard,lazy_itable_init=0 "$1" ;;
        ext4-without-journal) mkfs.ext4 -q -F -N 8192 -O ^has_journal -E nodiscard,lazy_itable_init=0 "$1" ;;
        xfs) mkfs.xfs -q -f -K "$1" ;;
    esac
}

# fresh_file_system DEVICE: creates one and mounts it at /mnt.
fresh_file_system() {
    create_file_system "$1"
    mount "$1" /mnt
}

# The guest's own disk.
mount_local() { fresh_file_system "$(own_disk 1)"; }
mount_cached() { fresh_file_system "$(own_disk 4)"; }

# iSCSI: by this program with the cache mode CACHE (default: none), or from memory of the size RAM; by the kernel's target; by tgt.
serve_sarsen() {
    set -- "$1" /sarsen serve --listen "$SERVER:3260"
    for number in $(numbers "$1"); do
        backing=file:$(own_disk "$number"),cache=${CACHE:-none}
        [ -z "${RAM:-}" ] || backing=ram:$RAM
        set -- "$@" --volume "disk$number=$backing"
    done
    shift
    begin "$@"
    until_true 60 listens 3260
}

serve_lio() {
    is_mounted /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
    for number in $(numbers "$1"); do
        store=/sys/kernel/config/target/core/iblock_0/disk$number
        mkdir -p "$store"
        echo "udev_path=$(own_disk "$number")" >"$store/control"
        echo 1 >"$store/enable"
        group=/sys/kernel/config/target/iscsi/$IQN:disk$number/tpgt_1
        mkdir -p "$group" "$group/np/$SERVER:3260" "$group/lun/lun_0"
        ln -s "$store" "$group/lun/lun_0/store"
        for setting in authentication=0 demo_mode_write_protect=0 generate_node_acls=1 cache_dynamic_acls=1; do
            echo "${setting#*=}" >"$group/attrib/${setting%=*}"
        done
        echo 1 >"$group/enable"
    done
}
end_lio() {
    for group in /sys/kernel/config/target/iscsi/iqn.*/tpgt_1; do
        echo 0 >"$group/enable"
        rm "$group"/lun/lun_0/store
        rmdir "$group"/lun/lun_0 "$group"/np/* "$group" "${group%/*}"
    done
    rmdir /sys/kernel/config/target/core/iblock_0/disk*
}

serve_tgt() {
    begin tgtd -f --iscsi "portal=$SERVER:3260"
    until_true 60 listens 3260
    for number in $(numbers "$1"); do
        tgtadm --mode target --op new --tid "$number" --targetname "$IQN:disk$number"
        tgtadm --mode logicalunit --op new --tid "$number" --lun 1 --backing-store "$(own_disk "$number")"
        tgtadm --mode target --op bind --tid "$number" --initiator-address ALL
    done
}

attach_iscsi() {
    mkdir -p /etc/iscsi
    echo "InitiatorName=$IQN:$(hostname)" >/etc/iscsi/initiatorname.iscsi
    pidof iscsid >/dev/null || iscsid
    iscsiadm -m node -T "$IQN:disk$1" -p "$SERVER:3260" -o new
    until_true 20 iscsiadm -m node -T "$IQN:disk$1" -p "$SERVER:3260" --login
    until_true 20 find_disk
}
find_disk() {
    for path in /sys/class/iscsi_session/session*/device/target*/*/block/*; do
        disk=/dev/${path##*/}
        [ -b "$disk" ] && return 0
    done
    return 1
}
detach_iscsi() {
    iscsiadm -m node --logoutall=all
    iscsiadm -m node -o delete
}
mount_iscsi() {
    attach_iscsi "$1"
    fresh_file_system "$disk"
}

# ATA over Ethernet, by vblade.
serve_aoe() {
    for number in $(numbers "$1"); do
        begin vblade "$number" 1 bridge0 "$(own_disk "$number")"
    done
}
attach_aoe() {
    disk=/dev/etherd/e$1.1
    until_true 30 discovered
}
discovered() {
    echo >/dev/etherd/discover
    [ -b "$disk" ]
}
mount_aoe() {
    attach_aoe "$1"
    fresh_file_system "$disk"
}

# NFS, by the kernel's server.
serve_nfs() {
    is_mounted /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
    mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/sm /run/rpcbind /run/sendsigs.omit.d
    touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab
    grep -q ^_rpc: /etc/passwd || echo '_rpc:x:100:65534::/run/rpcbind:/bin/false' >>/etc/passwd
    pidof rpcbind >/dev/null || rpcbind -w
    for number in $(numbers "$1"); do
        mkdir -p "/srv/$number"
        create_file_system "$(own_disk "$number")"
        mount "$(own_disk "$number")" "/srv/$number"
        exportfs -o "rw,sync,no_root_squash,no_subtree_check,insecure,fsid=$number" "*:/srv/$number"
    done
    pidof rpc.mountd >/dev/null || rpc.mountd
    rpc.nfsd 8
    until_true 60 listens 2049
    # No client has had a lock before.
    echo Y >/proc/fs/nfsd/v4_end_grace
}
end_nfs() {
    rpc.nfsd 0
    exportfs -au
    for share in $(grep ' /srv/' /proc/mounts | cut -d' ' -f2); do umount "$share"; done
}
mount_nfs() { mount -i -t nfs -o "vers=4.2,proto=tcp,hard,addr=$SERVER" "$SERVER:/srv/$1" /mnt; }

# SMB: the kernel's server and client.
serve_smb() {
    mkdir -p /etc/ksmbd
    {
        printf '[global]\nmap to guest = bad user\nnetbios name = server\n'
        for number in $(numbers "$1"); do
            printf '[disk%s]\npath = /srv/%s\nguest ok = yes\nwriteable = yes\nforce user = root\nforce group = root\n' "$number" "$number"
        done
    } >/etc/ksmbd/ksmbd.conf
    touch /etc/ksmbd/ksmbdpwd.db
    for number in $(numbers "$1"); do
        mkdir -p "/srv/$number"
        create_file_system "$(own_disk "$number")"
        mount "$(own_disk "$number")" "/srv/$number"
    done
    ksmbd.mountd
    until_true 60 listens 445
}
end_smb() {
    ksmbd.control --shutdown
    until_true 60 no_mountd
    for share in $(grep ' /srv/' /proc/mounts | cut -d' ' -f2); do umount "$share"; done
}
no_mountd() { ! pidof ksmbd.mountd >/dev/null; }
mount_smb() { mount -i -t cifs -o "ip=$SERVER,unc=\\\\$SERVER\\disk$1,vers=3.1.1,username=guest,password=,hard" "//$SERVER/disk$1" /mnt; }

# DRBD with PROTOCOL, or C: the client is primary, with a copy on the server.
drbd_resource() {
    mkdir -p /etc/drbd.d /var/lib/drbd /run/drbd /var/lock
    echo 'include "drbd.d/*.res";' >/etc/drbd.conf
    cat >"/etc/drbd.d/disk$1.res" <<RESOURCE
resource disk$1 {
    device /dev/drbd$1;
    meta-disk internal;
    net { protocol ${PROTOCOL:-C}; }
    on server { disk $(own_disk "$1"); address $SERVER:$((7000 + $1)); }
    on client$1 { disk $(own_disk 1); address ${SERVER%.*}.$((${SERVER##*.} + $1)):$((7000 + $1)); }
}
RESOURCE
    dd if=/dev/zero of="$2" bs=1M count=1 conv=fsync 2>/dev/null
    drbdadm create-md --force "disk$1"
    drbdadm up "disk$1"
}
serve_drbd() {
    for number in $(numbers "$1"); do
        drbd_resource "$number" "$(own_disk "$number")"
    done
}
attach_drbd() {
    drbd_resource "$1" "$(own_disk 1)"
    disk=/dev/drbd$1
    until_true 60 drbd_connected "$1"
    # Both disks are new: there is nothing to copy.
    drbdadm new-current-uuid --clear-bitmap "disk$1/0"
    drbdadm primary "disk$1"
}
drbd_connected() { [ "$(drbdadm cstate "disk$1")" = Connected ]; }
mount_drbd() {
    attach_drbd "$1"
    fresh_file_system "$disk"
}
end_drbd() {
    drbdadm down all
    rm /etc/drbd.d/*.res
}

# Roles of DRBD, with one client.
drbd_disconnected() { ! drbd_connected "$1"; }
drbd_is_current() { [ "$(drbdadm dstate "disk$1")" = UpToDate/UpToDate ]; }
# serve_as_primary: the server takes over, and mounts the file system at /mnt.
serve_as_primary() {
    until_true 60 drbdadm primary disk1 >/dev/null
    mount /dev/drbd1 /mnt
}
give_up_primary() {
    umount /mnt
    drbdadm secondary disk1
}
# fill NAME MIB: a file, which is durable.
fill() { dd if=/dev/urandom of="/mnt/$1" bs=1M count="$2" conv=fsync 2>/dev/null; }

# requests_PROTOCOL: prints how many requests this client has sent to the server.
requests_iscsi() {
    find_disk
    # Completed reads, writes, discards and flushes (Documentation/admin-guide/iostats.rst).
    awk '{ print $1 + $5 + $12 + $16 }' "/sys/block/${disk##*/}/stat"
}
requests_smb() { awk '/^SMBs:/ { print $2 }' /proc/fs/cifs/Stats; }
requests_nfs() { awk '$1 == "rpc" { print $2 }' /proc/net/rpc/nfs; }

# with_memory MIB COMMAND...: runs the command with about so much memory for itself and its files' pages. The kernel reclaims what is
# above it, and kills nothing.
with_memory() {
    is_mounted /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p /sys/fs/cgroup/limited
    echo "$(($1 << 20))" >/sys/fs/cgroup/limited/memory.high
    shift
    (
        exec sh -c 'echo $$ >/sys/fs/cgroup/limited/cgroup.procs; exec "$@"' sh "$@"
    )
}
