# The kernel's own target as the server: it begins with /saved.json, by rtslib, and tells what it saves itself.

# pyudev looks for its library in what this writes.
ldconfig
mkdir -p /etc/rtslib-fb-target /srv
targetctl restore /saved.json
targetctl save /written.json
echo "RESULT saved $(tr -d '\n' </written.json)"
echo 'RESULT ready yes'
# Until it is ended from outside.
while :; do sleep 60; done
