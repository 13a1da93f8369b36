# Executes scripts that the host sends through a port, after a line that says that it is ready: a line with the length of
# the script, then the script. The answer is a line with the exit status and the length of the output, then the output.
until [ -c /dev/vport*p1 ]; do sleep 0.1; done
exec 3<>"$(echo /dev/vport*p1)"
echo ready >&3
while read -r length <&3; do
    head -c "$length" <&3 >/run/script
    sh -eu /run/script >/run/output 2>&1 </dev/null 3<&-
    status=$?
    echo "$status $(wc -c </run/output)" >&3
    cat /run/output >&3
done
