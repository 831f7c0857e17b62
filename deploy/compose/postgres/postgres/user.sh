#!/bin/sh
# Creates the gateways' user when the database is created; what it may do is for `tollgate store init` to say.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$(cat /run/secrets/gateway-password)" -U postgres -d "$POSTGRES_DB" <<'SQL'
CREATE ROLE tollgate LOGIN PASSWORD :'password';
SQL
