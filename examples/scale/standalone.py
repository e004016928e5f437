"""A Spark cluster of two workers, PostgreSQL and a service, all on this machine, and one job through all of them.

It needs Java 17 and `pip install 'aggservice[spark,postgres]' pgserver`.
docs/scale.md explains each part. Everything is kept in a temporary folder and stopped at the end.
"""

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

import numpy as np
import pgserver
import pyspark

from aggservice.client import Client, JobParameters
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.service import embedded, load_config
from aggservice.wire import (
    Api,
    BucketRows,
    Contribution,
    ReportBatch,
    SharedInfo,
    make_report,
    read_summary,
    write_buckets,
    write_reports,
)

ORIGIN = "https://adtech.example"
REPORTS, KEYS, FILES = 2000, 50, 4

CONFIG = """
state = "state"
listen = "127.0.0.1:0"
engine = "spark"

[spark]
master = "spark://127.0.0.1:{port}"

[spark.settings]
"spark.executor.memory" = "512m"

[ledger]
store = "postgres"
dsn_file = "ledger.dsn"

[folders]
input = "reports"
output = "summaries"
"""


@contextmanager
def daemon(*arguments):
    """Run a part of Spark until the block ends."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def seal(folder, keys):
    """Write sealed reports into several files, as a collector does, and the domain beside them."""
    bits, now_s = SecureBits(), SystemClock().now_ms() // 1000
    reports = []
    for number in range(REPORTS):
        info = SharedInfo(
            api=Api.ATTRIBUTION_REPORTING,
            report_id=str(UUID(bytes=bits.read(16), version=4)),
            reporting_origin=ORIGIN,
            scheduled_report_time_s=now_s - 60,
            attribution_destination="https://shop.example",
        )
        amount = Contribution(bucket=number % KEYS, value=1000)
        reports.append(make_report([amount], shared_info=info, keys=keys, bits=bits, maximum=20))
    for file in range(FILES):
        write_reports(folder / f"reports-{file}.avro", [ReportBatch.of(reports[file::FILES])])
    write_buckets(
        folder / "domain.avro", BucketRows.domain(np.zeros(KEYS, np.uint64), np.arange(KEYS, dtype=np.uint64))
    )


def main():
    """Start everything, run a job, and check it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scale-", ignore_cleanup_errors=True)))
        database = stack.enter_context(tempfile.TemporaryDirectory(prefix="scale-pg-", ignore_cleanup_errors=True))
        server = pgserver.get_server(database)
        stack.callback(server.cleanup)

        os.environ.update(
            PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", SPARK_LOCAL_DIRS=str(folder / "spark")
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        stack.enter_context(daemon(*master, "--webui-port", "0"))
        worker = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
        for number in range(2):
            stack.enter_context(
                daemon(*worker, "--work-dir", str(folder / f"worker-{number}"), f"spark://127.0.0.1:{port}")
            )
        print(f"Spark: a master and two workers at spark://127.0.0.1:{port}; PostgreSQL in {database}")

        for name in ("reports", "summaries"):
            (folder / name).mkdir()
        (folder / "ledger.dsn").touch(mode=0o600)
        (folder / "ledger.dsn").write_text(server.get_uri())
        (folder / "service.toml").write_text(CONFIG.format(port=port))

        service = stack.enter_context(embedded(load_config(folder / "service.toml")))
        client = stack.enter_context(Client(service.address))
        seal(folder / "reports", client.public_keys())
        client.create_job(
            "monday",
            JobParameters(attribution_report_to=ORIGIN, epsilon="10"),
            input_data_blob_prefix="reports",
            output_domain_blob_prefix="domain",
            output_data_blob_prefix="monday.avro",
        )
        client.watch_job("monday")
        rows = [row for path in sorted((folder / "summaries").glob("monday*.avro")) for row in read_summary(path)]
        metrics = np.concatenate([row.metric for row in rows])
        print(
            f"summary: {metrics.size} keys, each {REPORTS // KEYS * 1000:,} without noise; first {metrics[:4].tolist()}"
        )
        print("audit:", "ok" if client.verify_ledger().ok else "failed")


if __name__ == "__main__":
    main()
