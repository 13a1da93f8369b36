# What happens on the machine; prints `RESULT name value`.
export LIBISCSI_CHAP_USERNAME=host LIBISCSI_CHAP_PASSWORD='a secret of many words'
disk=iscsi://127.0.0.1:3260/iqn.2026-11.io.sarsen:data/0

is_served() {
    sarsen disk info "$disk" >/dev/null && echo yes || echo no
}

main_pid() {
    systemctl show --property=MainPID --value sarsen.service
}

# Connects as often as it can until the file $1 is there; counts who was refused.
connect() {
    connected=0 refused=0
    until [ -e "$1" ]; do
        if (exec 9<>/dev/tcp/127.0.0.1/3260) 2>/dev/null; then
            connected=$((connected + 1))
        else
            refused=$((refused + 1))
        fi
    done
    echo "RESULT refused $refused"
    [ $connected -gt 0 ] && echo "RESULT connected yes"
}

systemctl start sarsen.service
echo "RESULT started $(systemctl is-active sarsen.service)"
sarsen volume create data 16MiB --export --chap host --secret-from /etc/sarsen/secrets/host
echo "RESULT served $(is_served)"
credential=/run/credentials/sarsen.service/secrets_host
echo "RESULT credential $(stat --format=%U:%a $credential)"
status=/proc/$(main_pid)/status
echo "RESULT capabilities $(awk '/^CapBnd/ {print $2}' "$status")"
echo "RESULT filtered $(awk '/^Seccomp:/ {print $2}' "$status")"
echo "RESULT user $(awk '/^Uid/ {print ($2 == 0) ? "root" : "nobody"}' "$status")"

connect /tmp/done &
for _ in 1 2 3; do
    systemctl restart sarsen.service
done
before=$(main_pid)
sarsen upgrade
echo "RESULT upgraded $?"
[ "$(main_pid)" = "$before" ] && echo "RESULT process same"
touch /tmp/done
wait
echo "RESULT served_after $(is_served)"

systemctl stop sarsen.service
(exec 9<>/dev/tcp/127.0.0.1/3260) 2>/dev/null || echo "RESULT closed yes"
sed -i /^listen/d /etc/sarsen/sarsen.toml
systemctl start sarsen.socket
echo "RESULT waiting $(systemctl is-active sarsen.service)"
echo "RESULT activated $(is_served)"
