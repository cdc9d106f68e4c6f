#!/bin/sh
# Programs whose sockets librspreload makes rsockets: preload.sh DIRECTORY PORT
#
# The sockets of netcat-traditional have neither SOCK_CLOEXEC nor SOCK_NONBLOCK, so librspreload
# takes them, and the kernel has no listener at the port. Those of Python have, and stay with TCP:
# the client's rsocket is refused, and librspreload connects it by TCP.
set -eu

directory=${1:?usage: preload.sh DIRECTORY PORT}
port=${2:?usage: preload.sh DIRECTORY PORT}
octets=3000000
limit=60

cd "$directory"
preload=$(dpkg -L librdmacm1 | grep '/librspreload\.so$')
serving=
trap '[ -z "$serving" ] || kill "$serving" 2>/dev/null' EXIT

over_rsockets="env LD_PRELOAD=$preload:$LD_PRELOAD timeout $limit"

listens_at() {
    ss -Hltn "sport = :$1" | grep -q .
}

# Has a program fetch the file: fetch PORT PROGRAM ARGUMENTS
fetch() {
    at=$1
    shift
    rm -f got
    tries=0
    # shellcheck disable=SC2086 # the command is meant to be split
    until $over_rsockets "$@" "http://127.0.0.1:$at/file"; do
        # The server does not listen yet.
        tries=$((tries + 1))
        [ "$tries" -lt 50 ] || { echo "$*: fails" >&2; exit 1; }
        sleep 0.2
    done
    cmp file got
    echo "$1: fetched"
}

head -c "$octets" /dev/urandom >file
printf 'HTTP/1.0 200 OK\r\nContent-Length: %s\r\nConnection: close\r\n\r\n' "$octets" >response
cat file >>response

for client in "curl --silent --output got" "wget --quiet --tries=1 --output-document=got"; do
    # shellcheck disable=SC2086 # the command is meant to be split
    $over_rsockets nc.traditional -l -p "$port" -q 2 <response >request &
    serving=$!
    # shellcheck disable=SC2086 # the command is meant to be split
    fetch "$port" $client
    ! listens_at "$port" || { echo "the server listens at a TCP port" >&2; exit 1; }
    wait "$serving"
    serving=
    grep -q '^GET /file ' request
    port=$((port + 1))
done

# shellcheck disable=SC2086 # the command is meant to be split
$over_rsockets python3 -m http.server --bind 127.0.0.1 "$port" >/dev/null 2>&1 &
serving=$!
fetch "$port" wget --quiet --tries=1 --output-document=got
listens_at "$port" || { echo "Python's server has no TCP port" >&2; exit 1; }
echo "librspreload: all fetched"
