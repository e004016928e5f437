#!/bin/sh
# Streams reports to aggservice over gRPC and prints the summary, with `buf curl` (https://buf.build) and jq.
#
#   ADDRESS=127.0.0.1:50051 ORIGIN=https://adtech.example JOB=monday EPSILON=10 DOMAIN="159 5" \
#     [CA=authority.pem TOKEN_FILE=token] ./aggregate.sh reports.jsonl
#
# reports.jsonl has one report per line, as browsers post them; DOMAIN has the keys in hexadecimal. Without CA the
# connection is not encrypted. grpcurl takes the same JSON: grpcurl -import-path proto -d @ ADDRESS METHOD.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
proto=${PROTO:-$here/../../../proto}
: "${ADDRESS:=127.0.0.1:50051}" "${EPSILON:=10}" "${DOMAIN:=}"

call() {  # METHOD: reads JSON messages, writes JSON answers
  url="$ADDRESS/aggservice.v1.$1"
  if [ -n "${CA:-}" ]; then set -- --cacert "$CA" "https://$url"; else set -- --http2-prior-knowledge "http://$url"; fi
  if [ -n "${TOKEN_FILE:-}" ]; then set -- -H "authorization: Bearer $(cat "$TOKEN_FILE")" "$@"; fi
  buf curl --schema "$proto" --protocol grpc --data @- "$@"
}

# A key is 16 bytes, big-endian; bytes are base64 in JSON.
keys=$(for key in $DOMAIN; do printf '%032d' 0 | cut -c1-$((32 - ${#key})) | tr -d '\n'; printf '%s' "$key"; done)
domain=$(printf '%s' "$keys" | sed 's/../\\x&/g' | xargs -0 printf | base64 | tr -d '\n')

{
  jq -nc --arg job "$JOB" --arg origin "$ORIGIN" --arg epsilon "$EPSILON" '{jobParameters: {jobRequestId: $job,
    attributionReportTo: $origin, privacyParams: {laplaceDpParams: {jobEpsilon: $epsilon}}}}'
  jq -nc --arg domain "$domain" '{domain: $domain}'
  jq -nc '[inputs] | _nwise(500) | {reports: {payloads: map(.aggregation_service_payloads[0].payload),
    keyIds: map(.aggregation_service_payloads[0].key_id), sharedInfos: map(.shared_info)}}' "$1"
  jq -nc --arg count "$(grep -c . "$1")" '{end: {reportCount: $count}}'
} | call AggregationService/Aggregate | jq -c '.rows // .header // empty'
