// Streams reports to aggservice over gRPC and prints the summary.
//
//   node client.mjs --address 127.0.0.1:50051 --origin https://adtech.example --job monday --epsilon 10 \
//     --domain 0x159,0x5 [--ca authority.pem --token-file token] reports.jsonl
//
// reports.jsonl has one report per line, as browsers post them. Without --ca the connection is not encrypted.

import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const PROTO = resolve(dirname(fileURLToPath(import.meta.url)), "../../../proto");
const FILES = ["aggservice/v1/aggregation_service.proto", "aggservice/v1/budget_service.proto"];
const BATCH = 500;
// What every gRPC error carries beside its text: https://google.aip.dev/193.
const STATUS = `syntax = "proto3"; package google.rpc;
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }`;

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    address: { type: "string", default: "127.0.0.1:50051" },
    origin: { type: "string" },
    job: { type: "string" },
    epsilon: { type: "string", default: "10" },
    domain: { type: "string", default: "" },
    ca: { type: "string" },
    "token-file": { type: "string" },
  },
});
if (positionals.length !== 1 || !options.origin || !options.job) {
  console.error("give --origin, --job and one file of reports");
  process.exit(2);
}

const { v1 } = grpc.loadPackageDefinition(
  loader.loadSync(FILES, { includeDirs: [PROTO], longs: String, enums: String, keepCase: true, oneofs: true }),
).aggservice;
const secure = options.ca === undefined ? grpc.credentials.createInsecure() : grpc.credentials.createSsl(readFileSync(options.ca));
const metadata = new grpc.Metadata();
if (options["token-file"]) metadata.set("authorization", `Bearer ${readFileSync(options["token-file"], "utf8").trim()}`);

/** The messages of a job in their order: parameters, domain, reports, end. */
function* messages() {
  yield {
    job_parameters: {
      job_request_id: options.job,
      attribution_report_to: options.origin,
      privacy_params: { laplace_dp_params: { job_epsilon: options.epsilon } },
    },
  };
  const keys = options.domain.split(",").filter(Boolean);
  yield { domain: Buffer.concat(keys.map((key) => Buffer.from(BigInt(key).toString(16).padStart(32, "0"), "hex"))) };
  const bodies = readFileSync(positionals[0], "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
  for (let start = 0; start < bodies.length; start += BATCH) {
    const part = bodies.slice(start, start + BATCH);
    yield {
      reports: {
        payloads: part.map((body) => Buffer.from(body.aggregation_service_payloads[0].payload, "base64")),
        key_ids: part.map((body) => body.aggregation_service_payloads[0].key_id),
        shared_infos: part.map((body) => body.shared_info),
      },
    };
  }
  yield { end: { report_count: bodies.length } };
}

/** Streams the job and returns its header and rows. Nothing is sent faster than the service reads it. */
async function aggregate(client) {
  const call = client.Aggregate(metadata);
  const found = { header: null, rows: [] };
  const done = new Promise((resolve, reject) => {
    call.on("error", reject);
    call.on("end", () => resolve(found));
    call.on("data", (response) => {
      if (response.part === "header") found.header = response.header;
      if (response.part === "rows") {
        response.rows.metrics.forEach((metric, row) => {
          found.rows.push([response.rows.buckets.subarray(16 * row, 16 * row + 16).toString("hex"), metric]);
        });
      }
    });
  });
  const sending = (async () => {
    for (const message of messages()) {
      if (!call.write(message)) await Promise.race([once(call, "drain"), done]);
    }
    call.end();
  })();
  await Promise.all([done, sending]);
  return found;
}

/** Returns the ErrorDetail of a refusal, or null if the error is not the service's own. */
function detailOf(error) {
  const [packed] = error.metadata?.get("grpc-status-details-bin") ?? [];
  if (packed === undefined) return null;
  const status = protobuf.parse(STATUS).root.lookupType("google.rpc.Status").decode(packed);
  const root = new protobuf.Root();
  root.resolvePath = (origin, target) => (target.startsWith("google/") ? target : resolve(PROTO, target));
  const type = root.loadSync("aggservice/v1/common.proto", { keepCase: true }).lookupType("aggservice.v1.ErrorDetail");
  return type.toObject(type.decode(status.details[0].value), { longs: String, enums: String, bytes: Buffer });
}

/** Prints what was refused, how many units could not pay, and each of them. */
async function explain(error) {
  console.error(`refused (${grpc.status[error.code]}): ${error.details}`);
  const detail = detailOf(error);
  if (detail === null) return;
  console.error(`return code: ${detail.return_code}`);
  if (detail.remedy) console.error(`what to do: ${detail.remedy}`);
  if (!detail.units?.length) return;
  console.error(`${detail.count} units cannot pay:`);
  const budget = new v1.BudgetService(options.address, secure);
  for (let token = ""; ; ) {
    const request = { job_request_id: options.job, page_size: 1000, page_token: token };
    const page = await new Promise((resolve, reject) => {
      budget.ListUnpaidUnits(request, metadata, (problem, response) => (problem ? reject(problem) : resolve(response)));
    });
    for (const one of page.units) console.error(`  ${one.unit.toString("hex")} spent ε ${one.spent.epsilon}`);
    token = page.next_page_token;
    if (!token) break;
  }
}

const client = new v1.AggregationService(options.address, secure);
try {
  const { header, rows } = await aggregate(client);
  for (const [bucket, metric] of rows) console.log(`0x${bucket.replace(/^0+(?=.)/, "")} ${metric}`);
  console.log(`${rows.length} rows, ${header.return_code}; ${header.statement.text}`);
} catch (error) {
  await explain(error);
  process.exitCode = 1;
}
