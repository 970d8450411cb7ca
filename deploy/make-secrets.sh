#!/bin/sh
# make-secrets.sh FOLDER GROUP:ROLE:HOST,HOST...[:USER,USER...]: writes missing secrets of each group of containers to FOLDER/GROUP: the token of
# ROLE, digests of all accepted tokens, a certificate for the hosts, and the certificate of the authority that signed it. A group without a role,
# such as a database, gets only the certificates, and a key that any user of its containers can read.
# USER is a database user. The password is written to `pgpass` in the format of PostgreSQL's clients; for Redis, whose user is `default`, to
# `redis-password`; in the group of the database itself, to `password`.
# The authority's key is deleted, so nothing can be signed with it later. To renew all secrets, empty all folders and run the script again.
set -eu

folder=$1
shift
umask 077
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

users_of() {
    case $1 in *:*:*:*) echo "${1##*:}" | tr , ' ' ;; esac
}

# file_of GROUP:... USER: prints the path of the file with the user's password
file_of() {
    case $1:$2 in
    *::*) echo "$folder/${1%%:*}/password" ;;
    *:default) echo "$folder/${1%%:*}/redis-password" ;;
    *) echo "$folder/${1%%:*}/pgpass" ;;
    esac
}

# Passwords are made independently of certificates. PostgreSQL reads its password at each start, so one missing file renews the passwords of
# all its users. A running Redis does not read its password again, so a new group gets the existing password.
missing=no
for group in "$@"; do
    for user in $(users_of "$group"); do
        file=$(file_of "$group" "$user")
        if [ "$user" = default ]; then
            [ ! -s "$file" ] || cp "$file" password-default
        elif [ ! -s "$file" ]; then
            missing=yes
        fi
    done
done
for group in "$@"; do
    for user in $(users_of "$group"); do
        file=$(file_of "$group" "$user")
        case $user:$missing in
        default:*) [ ! -s "$file" ] || continue ;;
        *:no) continue ;;
        esac
        mkdir -p "${file%/*}"
        [ -s "password-$user" ] || openssl rand -hex 32 > "password-$user"
        case $file in
        */pgpass) echo "postgres:5432:modyn:$user:$(cat "password-$user")" > "$file.new" ;;
        */redis-password) cp "password-$user" "$file.new" ;;
        *) install -m 0644 "password-$user" "$file.new" ;;
        esac
        mv -f "$file.new" "$file"
    done
done

missing=no
for group in "$@"; do
    case $group in *::*) last=server.crt ;; *) last=token ;; esac
    [ -s "$folder/${group%%:*}/$last" ] || missing=yes
done
if [ $missing = no ]; then
    echo "the certificates, keys and tokens in $folder are there already"
    exit 0
fi
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 -subj "/CN=modyn authority" \
    -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.crt
openssl rand -hex 32 > admin
for role in reader worker writer; do
    # Derived as in modyn/rpc/access.py.
    printf 'modyn %s' $role | openssl dgst -sha256 -hmac "$(cat admin)" -r | cut -d ' ' -f 1 > $role
done
for role in reader worker writer admin; do
    echo "$role $(tr -d '\n' < $role | openssl dgst -sha256 -r | cut -d ' ' -f 1)" >> accepted
done

for group in "$@"; do
    name=${group%%:*}
    role=${group#*:}
    hosts=${role#*:}
    hosts=${hosts%%:*}
    role=${role%%:*}
    target=$folder/$name
    mkdir -p "$target"
    rm -f "$target/token"
    cp ca.crt "$target/"
    chmod 0644 "$target/ca.crt"
    alternatives=DNS:localhost,IP:127.0.0.1
    [ -z "$hosts" ] || alternatives=$alternatives,DNS:$(echo "$hosts" | sed 's/,/,DNS:/g')
    printf 'basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=%s\n' "$alternatives" > extensions
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=modyn $name" \
        -keyout "$target/server.key" -out server.csr
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile extensions \
        -out "$target/server.crt"
    chmod 0644 "$target/server.crt"
    if [ -z "$role" ]; then
        chmod 0644 "$target/server.key"
        continue
    fi
    cp accepted "$target/.accepted"
    cp "$role" "$target/.token"
    chmod 0640 "$target/.token" "$target/.accepted" "$target/server.key"
    # Renamed, so that a server that reads the file again never reads an incomplete file.
    mv -f "$target/.accepted" "$target/accepted"
done
# The tokens are renamed last: a token shows that the files of all groups are complete.
for group in "$@"; do
    case $group in *::*) ;; *) mv -f "$folder/${group%%:*}/.token" "$folder/${group%%:*}/token" ;; esac
done
echo "made certificates, keys and tokens in $folder"
