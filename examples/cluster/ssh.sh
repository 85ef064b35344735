#!/usr/bin/env bash
# A command of skillttrl on machines that ssh reaches: Ray is started here and on each of them, and stopped at the end.
#
#     examples/cluster/ssh.sh "node1 node2" skillttrl collect --env alfworld --policy expert -o expert.jsonl
#
# Every machine needs the same environment at the same path (VENV), and the environment's data: ALFWORLD_DATA and WEBSHOP_DATA of this
# machine are handed on. Nodes may be added while the command runs, with the same `ray start --address=...`.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: $0 \"HOST ...\" COMMAND ..." >&2
    exit 2
fi
hosts=$1
shift
venv=${VENV:-$(dirname "$(dirname "$(command -v ray)")")}
address=$(hostname --ip-address | cut -d' ' -f1):${PORT:-6379}

# Without a token anybody who reaches the port runs code here. The nodes get it over ssh, in no command line.
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
[ -f ~/.ray/auth_token ] || (umask 077 && "$venv/bin/ray" get-auth-token --generate >/dev/null)
stop() {
    for host in $hosts; do ssh "$host" "$venv/bin/ray" stop >/dev/null 2>&1 || true; done
    "$venv/bin/ray" stop >/dev/null 2>&1 || true
}
trap stop EXIT

"$venv/bin/ray" start --head --port="${address##*:}" --include-dashboard=false --disable-usage-stats
for host in $hosts; do
    ssh "$host" 'umask 077 && mkdir -p ~/.ray && cat > ~/.ray/auth_token' < ~/.ray/auth_token
    ssh "$host" env RAY_AUTH_MODE=token ${ALFWORLD_DATA:+ALFWORLD_DATA="$ALFWORLD_DATA"} \
        ${WEBSHOP_DATA:+WEBSHOP_DATA="$WEBSHOP_DATA"} "$venv/bin/ray" start --address="$address" --disable-usage-stats
done
PATH="$venv/bin:$PATH" "$@" --set scale.address="$address"
