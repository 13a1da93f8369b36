# How much slower first writes are than overwrites, and those right after a snapshot: volumes of a pool, and LVM-thin's
# device-mapper target, in one guest, with one program that measures both in turn. Both devices are alike: /dev/vda has
# the pool, /dev/vdb the thin pool's data, /dev/vdc its metadata.
# NEW: MiB of the volumes that are new. OLD: MiB of those that are full. ROUNDS: how often each measurement is repeated.

# measure NAME ROUND DISK
measure() {
    /sarsen lab load --cache none --block-size 4KiB --read 0 --random 100 --depth 8 --seconds 2 --destroy --json "$3" \
        2>/dev/null | sed -n "s,.*\"iops\":\([0-9]*\).*,RESULT $1/$2 \1,p"
}
fill() { dd if=/dev/zero bs=1M count="$OLD" oflag=direct of="$1" 2>/dev/null; }

export SARSEN_CONTROL=/run/control.sock
/sarsen pool create tank --offline --device /dev/vda
/sarsen serve --pool "tank=/dev/vda,cache=none" --listen-nbd 127.0.0.1:10809 --listen 127.0.0.1:3260 \
    --volume "new=pool:tank,size=${NEW}MiB" --volume "old=pool:tank,size=${OLD}MiB" \
    --volume "shared=pool:tank,size=${OLD}MiB" --control $SARSEN_CONTROL >/tmp/announced 2>/tmp/log &
server=$!
until [ -s /tmp/announced ]; do sleep 0.1; done
number=0
for volume in new old shared; do
    nbd-client 127.0.0.1 10809 /dev/nbd$number -N $volume -C 4
    until [ "$(cat /sys/class/block/nbd$number/size)" -gt 0 ]; do sleep 0.1; done
    number=$((number + 1))
done

dmsetup create data --noudevsync \
    --table "0 $(cat /sys/class/block/vdb/size) thin-pool /dev/vdc /dev/vdb 128 0"
number=0
for volume in "new $NEW" "old $OLD" "shared $OLD"; do
    dmsetup message data 0 "create_thin $number"
    dmsetup create "${volume% *}" --noudevsync --table "0 $((${volume#* } * 2048)) thin /dev/dm-0 $number"
    number=$((number + 1))
done

for disk in /dev/nbd1 /dev/nbd2 /dev/dm-2 /dev/dm-3; do fill $disk; done
round=1
while [ $round -le "$ROUNDS" ]; do
    measure pool/overwrite $round /dev/nbd1
    measure thin/overwrite $round /dev/dm-2
    measure pool/first $round /dev/nbd0
    measure thin/first $round /dev/dm-1
    /sarsen snapshot create shared@$round
    measure pool/after $round /dev/nbd2
    dmsetup suspend --noudevsync shared
    dmsetup message data 0 "create_snap $((round + 10)) 2"
    dmsetup resume --noudevsync shared
    measure thin/after $round /dev/dm-3
    round=$((round + 1))
done

for number in 0 1 2; do nbd-client -d /dev/nbd$number; done
kill $server
wait $server
for device in new old shared data; do dmsetup remove --noudevsync $device; done
thin_check /dev/vdc && echo 'RESULT thin_check clean'
echo "RESULT complaints $(dmesg | grep -icE 'i/o error|nbd[0-9]: .*(error|timed out|fail)' || true)"
