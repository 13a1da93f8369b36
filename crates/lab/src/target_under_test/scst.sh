# SCST by its files in /sys (scst/README). It follows /storage.

scst=/sys/kernel/scst_tgt

load_scst() {
    mkdir -p /var/lib/scst/pr /var/lib/scst/vdev_mode_pages
    for module in scst scst_vdisk iscsi-scst; do insmod "/scst/$module.ko"; done
    begin /scst/iscsi-scstd -f
    until_true 60 listens 3260
}

# serve_scst NUMBER HANDLER OPTION...: LUN 0 of a target.
serve_scst() {
    name=disk$1
    options="filename=$(own_disk "$1")"
    handler=$2
    shift 2
    for option in "$@"; do options="$options; $option"; done
    echo "add_device $name $options" >"$scst/handlers/$handler/mgmt"
    echo "add_target $IQN:$name" >"$scst/targets/iscsi/mgmt"
    echo "add $name 0" >"$scst/targets/iscsi/$IQN:$name/luns/mgmt"
    echo 1 >"$scst/targets/iscsi/$IQN:$name/enabled"
}

enable_scst() {
    echo 1 >"$scst/targets/iscsi/enabled"
    version=$(sed 1q "$scst/version")
    echo "$version, Linux $(uname -r)"
}
