"""Receipts for an OpenTelemetry collector, by OTLP over HTTP: an optional extra.

Every receipt is a log record; a wait that has ended is a span, from its first moment to its last.
Both carry the same attributes. The ids of trace and span are made from the id of the wait, so a
collector can put the two together, and a receipt that is sent twice is the same one.
"""

import hashlib
import logging
from datetime import datetime
from typing import Any, Final

from exporters.text import describe
from receipt_trace import __version__
from receipt_trace.constants import NS
from receipt_trace.errors import UsageError
from receipt_trace.receipt import Receipt

_PATIENCE_S: Final = 5


class OtlpExporter:
    """Sends receipts to the collector at ``endpoint``, to which ``/v1/logs`` and ``/v1/traces``
    are added. Headers, certificates and compression are taken from the environment
    (``OTEL_EXPORTER_OTLP_HEADERS`` …), as the OpenTelemetry SDK documents.

    Raises UsageError when the SDK is not installed, or the endpoint is no address.
    """

    def __init__(self, endpoint: str, hostname: str) -> None:
        if not endpoint.startswith(("http://", "https://")):
            raise UsageError(
                f"otlp is {endpoint!r}; expected the address of a collector, such as "
                f"http://127.0.0.1:4318"
            )
        try:
            self._sdk = _Sdk()
        except ImportError as error:
            raise UsageError(
                f"otlp needs the OpenTelemetry SDK, which is not installed ({error}); "
                f"install it: pip install 'receipt-trace[otlp]'"
            ) from None
        # A failure is told to the queue, which tells it in our own log.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        root = endpoint.rstrip("/")
        self._resource = self._sdk.Resource(
            {
                "service.name": "receipt-trace",
                "service.version": __version__,
                "host.name": hostname,
            }
        )
        self._logs = self._sdk.LogExporter(endpoint=f"{root}/v1/logs", timeout=_PATIENCE_S)
        self._spans = self._sdk.SpanExporter(endpoint=f"{root}/v1/traces", timeout=_PATIENCE_S)
        self._logged: str | None = None  # id of a receipt whose span was not taken

    def export(self, receipt: Receipt) -> None:
        """Send one receipt. Raises OSError when the collector did not take it."""
        if self._logged != receipt.id:
            self._take(self._logs.export([self._record(receipt)]))
            self._logged = receipt.id
        if receipt.resolution is not None:
            self._take(self._spans.export([self._span(receipt)]))

    def reopen(self) -> None:
        """Nothing: there is no file."""

    def close(self) -> None:
        """Let go of the connections."""
        self._logs.shutdown()
        self._spans.shutdown()

    def _take(self, result: Any) -> None:
        if result.name != "SUCCESS":
            raise OSError("the collector did not take it")

    def _record(self, receipt: Receipt) -> Any:
        sdk = self._sdk
        waits = receipt.resolution is None
        trace, span = _ids(receipt)
        return sdk.ReadableLogRecord(
            sdk.LogRecord(
                timestamp=_wall(receipt),
                observed_timestamp=_wall(receipt),
                trace_id=trace,
                span_id=span,
                trace_flags=sdk.TraceFlags(sdk.TraceFlags.SAMPLED),
                severity_text="WARN" if waits else "INFO",
                severity_number=sdk.SeverityNumber.WARN if waits else sdk.SeverityNumber.INFO,
                body=describe(receipt),
                attributes=attributes(receipt),
            ),
            self._resource,
            sdk.InstrumentationScope("receipt-trace", __version__),
        )

    def _span(self, receipt: Receipt) -> Any:
        sdk = self._sdk
        assert receipt.resolution is not None
        trace, span = _ids(receipt)
        end = _wall(receipt)
        return sdk.ReadableSpan(
            f"wait {receipt.program.name}",
            context=sdk.SpanContext(
                trace, span, is_remote=False, trace_flags=sdk.TraceFlags(sdk.TraceFlags.SAMPLED)
            ),
            resource=self._resource,
            attributes=attributes(receipt),
            instrumentation_scope=sdk.InstrumentationScope("receipt-trace", __version__),
            start_time=end - int(receipt.resolution.waited_s * NS),
            end_time=end,
        )


def attributes(receipt: Receipt) -> dict[str, Any]:
    """What log record and span say of a receipt; the names of the semantic conventions where
    there are some.
    """
    agent, tree, resolution = receipt.agent, receipt.tree, receipt.resolution
    values: dict[str, Any] = {
        "event.name": f"receipt_trace.{receipt.event}",
        "process.pid": receipt.program.pid,
        "process.executable.name": receipt.program.name,
        "process.executable.path": receipt.program.exe,
        "process.command_args": list(receipt.program.argv),
        "process.owner": tree.user,
        "container.id": tree.container_id,
        "gen_ai.agent.name": None if agent is None else agent.name,
        "session.id": None if agent is None else agent.session,
        "receipt_trace.id": receipt.id,
        "receipt_trace.wait": receipt.wait,
        "receipt_trace.label": tree.label,
        "receipt_trace.root_pid": tree.root_pid,
        "receipt_trace.kind": receipt.input.kind,
        "receipt_trace.wiring": receipt.input.wiring,
        "receipt_trace.prompt": receipt.prompt.text or None,
        "receipt_trace.grade": receipt.evidence.grade,
        "receipt_trace.resolution": None if resolution is None else resolution.how,
        "receipt_trace.waited_s": None if resolution is None else resolution.waited_s,
    }
    return {name: value for name, value in values.items() if value is not None}


def _ids(receipt: Receipt) -> tuple[int, int]:
    """(trace id, span id): never 0, which is invalid."""
    digest = hashlib.blake2b(receipt.wait.encode(), digest_size=24).digest()
    return int.from_bytes(digest[:16], "big") | 1, int.from_bytes(digest[16:], "big") | 1


def _wall(receipt: Receipt) -> int:
    """CLOCK_REALTIME in nanoseconds."""
    return int(datetime.fromisoformat(receipt.time).timestamp() * 1000) * 1_000_000


class _Sdk:
    """The names of the SDK that are used here; loaded only when an exporter is made."""

    def __init__(self) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http._log_exporter import (  # noqa: PLC0415
            OTLPLogExporter,
        )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk._logs import ReadableLogRecord  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
        from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

        self.LogRecord, self.SeverityNumber = LogRecord, SeverityNumber
        self.LogExporter: Any = OTLPLogExporter
        self.SpanExporter: Any = OTLPSpanExporter
        self.ReadableLogRecord, self.ReadableSpan = ReadableLogRecord, ReadableSpan
        self.Resource, self.InstrumentationScope = Resource, InstrumentationScope
        self.SpanContext, self.TraceFlags = SpanContext, TraceFlags
