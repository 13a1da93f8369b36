# A machine that lives as long as its systemd: this one's files below an overlay that forgets, with
# namespaces of its own for everything else. Run by `unshare`; $1 is a folder with the package
# (sarsen.deb) and scenario.sh, whose output is left there.
set -e
shared=$1
mount --make-rprivate /
layers=$shared/layers
mkdir "$layers"
mount -t tmpfs tmpfs "$layers"
mkdir "$layers/upper" "$layers/work" "$layers/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work" "$layers/root"
root=$layers/root
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
mount --rbind /dev "$root/dev"
mkdir "$root/shared" "$root/old"
mount --bind "$shared" "$root/shared"
mount -t tmpfs tmpfs "$root/tmp"
ip link set lo up
chroot "$root" dpkg --force-depends --install /shared/sarsen.deb

printf 'a secret of many words' >"$root/etc/sarsen/secrets/host"
echo 'listen = ["127.0.0.1:3260"]' >>"$root/etc/sarsen/sarsen.toml"
units=$root/run/systemd/system
mkdir -p "$units/sarsen.service.d"
# Nothing else of the machine is to start.
cat >"$units/sarsen.service.d/alone.conf" <<END
[Unit]
DefaultDependencies=no
Wants=
After=
[Service]
StandardOutput=append:/shared/sarsen.log
StandardError=append:/shared/sarsen.log
END
cat >"$units/scenario.service" <<END
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/bash /shared/scenario.sh
StandardOutput=append:/shared/scenario.log
StandardError=append:/shared/scenario.log
ExecStopPost=/bin/systemctl --force --force poweroff
END
cd "$root"
pivot_root . old
umount --lazy /old
# As a booted machine has it; credentials reach a service by it.
mount --make-rshared /
exec env -i container=proof PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=scenario.service --log-target=console --show-status=0
