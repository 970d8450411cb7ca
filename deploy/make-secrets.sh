#!/bin/sh
# make-secrets.sh FOLDER NAME...: a certificate for the hosts NAME... with the authority that signed it, and a token, unless FOLDER has them.
# The authority's key is thrown away: nothing can be signed with it later. To renew, empty FOLDER and run it again.
set -eu

folder=$1
shift
if [ -s "$folder/token" ]; then
    echo "the secrets in $folder are there already"
    exit 0
fi

umask 077
work=$(mktemp -d "$folder/.new.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
alternatives=DNS:localhost,IP:127.0.0.1
for name in "$@"; do
    alternatives=$alternatives,DNS:$name
done
printf 'basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\nsubjectAltName=%s\n' "$alternatives" > extensions
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 -subj "/CN=modyn authority" \
    -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.crt
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=modyn" -keyout server.key -out server.csr
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile extensions -out server.crt
openssl rand -hex 32 > token
chmod 0640 token
chmod 0644 ca.crt server.crt
# The token last: it is what says that all is there.
mv ca.crt server.crt server.key "$folder/"
mv token "$folder/"
echo "made certificate, key and token in $folder"
