"""Receipts for a collector: a stand-in on loopback that decodes what it is sent."""

import http.server
import subprocess
import sys
import threading

import pytest
from builders import NS, receipt, resolved
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from exporters.otlp import OtlpExporter
from receipt_trace.errors import UsageError

KINDS = {"/v1/logs": ExportLogsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


class Collector(http.server.HTTPServer):
    """Keeps what it is sent; ``status`` is what it answers."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.logs, self.spans = 200, [], []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        """Decode one request."""
        request = KINDS[self.path].FromString(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status == 200:
            for resource in getattr(request, "resource_logs", ()):
                self.server.logs += [
                    (resource.resource, record)
                    for scope in resource.scope_logs
                    for record in scope.log_records
                ]
            for resource in getattr(request, "resource_spans", ()):
                self.server.spans += [s for scope in resource.scope_spans for s in scope.spans]
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        """Quiet."""


@pytest.fixture
def collector():
    """One that listens."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.01,))
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


@pytest.fixture
def exporter(collector):
    """Sends to it."""
    exporter = OtlpExporter(collector.url, "host")
    yield exporter
    exporter.close()


def pairs(attributes):
    """Attributes as a dict."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


def test_a_wait_is_a_log_record_and_its_end_a_span_of_its_length(collector, exporter):
    """Both under one trace id."""
    wait = receipt(7, b"Delete? ", comm="rm", agent="codex")
    exporter.export(wait)
    assert collector.spans == []
    exporter.export(resolved(wait, "killed", 2.5))
    (_, first), (_, second) = collector.logs
    assert first.body.string_value == "rm[7] of codex asks for a line on /dev/pts/1: “Delete?”"
    assert (first.severity_text, second.severity_text) == ("WARN", "INFO")
    told = pairs(first.attributes)
    assert told["receipt_trace.prompt"] == "Delete?"
    assert told["gen_ai.agent.name"] == "codex"
    assert told["process.pid"] == 7
    assert told["event.name"] == "receipt_trace.wait"
    (span,) = collector.spans
    assert span.name == "wait rm"
    assert span.end_time_unix_nano - span.start_time_unix_nano == 2.5 * NS
    assert span.end_time_unix_nano == 1_700_000_000 * NS
    assert first.time_unix_nano == 1_700_000_000 * NS
    assert pairs(span.attributes)["receipt_trace.resolution"] == "killed"
    assert span.trace_id == first.trace_id == second.trace_id != bytes(16)


def test_the_host_and_the_version_are_of_the_resource(collector, exporter):
    """As the semantic conventions have them."""
    exporter.export(receipt())
    told = pairs(collector.logs[0][0].attributes)
    assert (told["service.name"], told["host.name"]) == ("receipt-trace", "host")


def test_a_collector_that_refuses_is_an_error_and_nothing_comes_twice(
    collector, exporter, capfd, caplog
):
    """The queue tries again; the log record of a receipt whose span was refused is not sent again."""
    wait = receipt()
    collector.status = 400
    with pytest.raises(OSError, match="did not take"):
        exporter.export(wait)
    collector.status = 200
    exporter.export(wait)
    assert len(collector.logs) == 1
    assert capfd.readouterr() == ("", "")


def test_a_collector_that_is_not_there_is_an_error(monkeypatch):
    """Within seconds."""
    monkeypatch.setattr("exporters.otlp._PATIENCE_S", 0.2)
    exporter = OtlpExporter("http://127.0.0.1:9", "host")
    with pytest.raises(OSError, match="did not take"):
        exporter.export(receipt())
    exporter.close()


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://x", "file:///etc/passwd", ""])
def test_what_is_no_address_is_told_with_an_example(endpoint):
    """Before anything is sent."""
    with pytest.raises(UsageError, match=r"such as http://127\.0\.0\.1:4318"):
        OtlpExporter(endpoint, "host")


def test_without_the_sdk_it_is_told_how_to_install_it(monkeypatch):
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UsageError, match=r"pip install 'receipt-trace\[otlp\]'"):
        OtlpExporter("http://127.0.0.1:4318", "host")


def test_nobody_pays_for_it_who_does_not_use_it():
    """The SDK is loaded when an exporter is made."""
    code = (
        "import sys, receipt_trace.commands.watch, exporters.otlp; "
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus', 'http.ser'))])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert said.stdout == "[]\n"
