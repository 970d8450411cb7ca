#!/bin/sh
# make-secrets.sh FOLDER GROUP:ROLE:HOST,HOST...[:USER,USER...]: the secrets of each group of containers in FOLDER/GROUP, unless they are there: the token
# of ROLE, digests of the tokens that are accepted, and a certificate for its hosts with the authority that signed it. Without a role, as for
# databases: the certificate only, with a key that any user of its containers can read.
# USER is one of a database: its password in `pgpass`, as PostgreSQL's clients read it, that of `default`, which is Redis', in `redis-password`, and for
# a database itself in `password`.
# The authority's key is thrown away: nothing can be signed with it later. To renew, empty all folders and run it again.
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

# GROUP:... USER
file_of() {
    case $1:$2 in
    *::*) echo "$folder/${1%%:*}/password" ;;
    *:default) echo "$folder/${1%%:*}/redis-password" ;;
    *) echo "$folder/${1%%:*}/pgpass" ;;
    esac
}

# Passwords are apart from certificates, which may be of another authority: PostgreSQL takes a new password at each start. A Redis that runs
# does not: its password stays, also where a group is new.
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
    # Renamed, so that a server which reads it again never finds a part of it.
    mv -f "$target/.accepted" "$target/accepted"
done
# The tokens last: they are what says that all is there.
for group in "$@"; do
    case $group in *::*) ;; *) mv -f "$folder/${group%%:*}/.token" "$folder/${group%%:*}/token" ;; esac
done
echo "made certificates, keys and tokens in $folder"
