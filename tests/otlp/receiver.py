"""A receiver of OTLP that reads requests with the official messages, and answers as a test wants."""

import gzip
import ssl
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse

METRICS, LOGS = "/v1/metrics", "/v1/logs"


@dataclass
class Request:
    path: str
    headers: dict
    body: bytes
    message: object
    # 0 if there was no answer
    status: int
    rejected: int = 0
    at: float = field(default_factory=time.monotonic)

    def metrics(self):
        return [metric for of in self.message.resource_metrics for scope in of.scope_metrics for metric in scope.metrics]

    def records(self):
        return [record for of in self.message.resource_logs for scope in of.scope_logs for record in scope.log_records]

    def items(self):
        if self.path == LOGS:
            return len(self.records())
        return sum(len(getattr(metric, metric.WhichOneof("data")).data_points) for metric in self.metrics())


class Handler(BaseHTTPRequestHandler):
    receiver = None

    def do_POST(self):
        receiver = self.receiver
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            request = self.read(body)
        except Exception as error:  # every mistake of the sender is a finding
            receiver.problems.append(f"{self.path}: {error!r}")
            self.send_error(400)
            return
        request.status, headers, request.rejected = receiver.answer(request)
        with receiver.lock:
            receiver.requests.append(request)
        receiver.is_over.wait(receiver.delay)
        if request.status == 0:
            # no answer: the sender gives up
            receiver.is_over.wait(60)
            return
        answer = ExportMetricsServiceResponse()
        if request.rejected:
            answer.partial_success.rejected_data_points = request.rejected
            answer.partial_success.error_message = "too old"
        answer = answer.SerializeToString()
        self.send_response(request.status)
        for name, value in {**headers, "content-type": "application/x-protobuf", "content-length": str(len(answer))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def read(self, body):
        headers = {name.lower(): value for name, value in self.headers.items()}
        assert headers["content-type"] == "application/x-protobuf", headers
        assert headers["content-encoding"] == "gzip", headers
        kinds = {METRICS: ExportMetricsServiceRequest, LOGS: ExportLogsServiceRequest}
        message, body = kinds[self.path](), gzip.decompress(body)
        message.ParseFromString(body)
        # unknown fields are written first or last, and defaults not at all
        message.DiscardUnknownFields()
        assert len(message.SerializeToString()) == len(body), "the message has unknown fields or defaults"
        return Request(self.path, headers, body, message, 0)

    def log_message(self, *_):
        pass


class Receiver:
    """`answer` returns a status (0 for none), headers, and how many items are rejected; `delay` is the time before it, in
    seconds."""

    def __init__(self, port=0, tls=None):
        self.requests, self.problems, self.lock = [], [], threading.Lock()
        self.is_over = threading.Event()
        self.answer = lambda request: (200, {}, 0)
        self.delay = 0
        self.tls = tls
        self.port = port
        self.start()

    def start(self):
        server = type("Server", (ThreadingHTTPServer,), {"daemon_threads": True, "handle_error": lambda *_: None})
        self.server = server(("127.0.0.1", self.port), type("OfReceiver", (Handler,), {"receiver": self}))
        self.port = self.server.server_port
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def end(self):
        self.is_over.set()
        self.stop()

    def seen(self, path, status=None):
        with self.lock:
            return [request for request in self.requests if request.path == path and status in (None, request.status)]

    def items(self, path, status):
        return sum(request.items() - request.rejected for request in self.seen(path, status))
