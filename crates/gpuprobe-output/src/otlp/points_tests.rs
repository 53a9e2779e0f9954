use std::sync::Arc;

use gpuprobe_analysis::snapshot::{Failure, FunctionCounts};
use gpuprobe_analysis::{GpuErrors, ProcessSnapshot, SelfMetrics};
use gpuprobe_event::counters::LATENCY_BUCKETS;
use gpuprobe_event::{Api, Class, Container, HostGpu, PciAddress, Pod};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{Metric, NumberDataPoint, metric, number_data_point};

use super::super::received::metrics_of;
use super::*;
use crate::test_processes;

const SECOND: u64 = 1_000_000_000;

fn function(calls: u64) -> FunctionCounts {
    let mut latency = [0; LATENCY_BUCKETS];
    // below the first bound, at 2 us, and above the last bound
    (latency[3], latency[10], latency[31]) = (calls - 2, 1, 1);
    FunctionCounts {
        api: Api::Driver,
        function: "cuMemAlloc_v2",
        class: Class::Alloc,
        is_instant: false,
        calls,
        errors: 1,
        bytes: 0,
        total_ns: 2_500_000_000,
        driver: Default::default(),
        latency,
    }
}

pub(in crate::otlp) fn process(pid: u32, calls: u64, failures: u64) -> Arc<ProcessSnapshot> {
    let failure = Failure {
        api: Api::Driver,
        function: "cuMemAlloc_v2",
        error: "CUDA_ERROR_OUT_OF_MEMORY",
        count: failures,
    };
    let pod = Pod { namespace: "ns".to_owned(), name: "pod".to_owned(), container: "c".to_owned() };
    Arc::new(ProcessSnapshot {
        instance: 3,
        container: Some(Container { id: "cafe".to_owned(), pod: Some(pod) }),
        functions: vec![function(calls)],
        failures: vec![failure],
        ..test_processes::process(pid, "a\"b\\\n")
    })
}

fn snapshot(at: u64, calls: u64) -> Snapshot {
    let pci = PciAddress { domain: 0, bus: 15, device: 0, function: 0 };
    let uuid = gpuprobe_event::Uuid([0x11; 16]);
    let mut snapshot = Snapshot {
        unix_seconds: at as f64,
        processes: vec![process(7, calls, 1)],
        gpus: vec![HostGpu { index: 4, uuid: Some(uuid), pci, minor: None, is_parted: false }],
        self_metrics: Some(SelfMetrics { cpu_ns: 1_500_000_000, open_files: 12, ..SelfMetrics::default() }),
        ..Snapshot::default()
    };
    snapshot.gpu_states.xids = vec![GpuErrors { gpu: 4, xid: 31, count: 2 }];
    snapshot
}

fn writer(temporality: Temporality) -> MetricsWriter {
    let resource = Resource::new(
        [("service.name", "a"), ("x", "1"), ("service.name", "gpuprobe"), ("y", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    MetricsWriter::new(resource, temporality, 100 * SECOND)
}

fn written(writer: &mut MetricsWriter, snapshot: &Snapshot) -> Vec<Metric> {
    let payloads = writer.write(snapshot, &Arc::default());
    assert_eq!(payloads.len(), 1);
    let mut request = metrics_of(&payloads[0].body);
    let mut of_resource = request.resource_metrics.pop().unwrap();
    assert_eq!(texts(&of_resource.resource.unwrap().attributes), ["service.name=gpuprobe", "x=1"]);
    let mut of_scope = of_resource.scope_metrics.pop().unwrap();
    let scope = of_scope.scope.take().unwrap();
    assert_eq!((scope.name.as_str(), scope.version.as_str()), ("gpuprobe", env!("CARGO_PKG_VERSION")));
    assert!(request.resource_metrics.is_empty() && of_resource.scope_metrics.is_empty());
    assert_eq!(payloads[0].items, of_scope.metrics.iter().map(|m| count(m) as u64).sum::<u64>());
    of_scope.metrics
}

fn count(metric: &Metric) -> usize {
    match metric.data.as_ref().unwrap() {
        metric::Data::Gauge(gauge) => gauge.data_points.len(),
        metric::Data::Sum(sum) => sum.data_points.len(),
        metric::Data::Histogram(histogram) => histogram.data_points.len(),
        other => panic!("{other:?}"),
    }
}

fn texts(attributes: &[KeyValue]) -> Vec<String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().unwrap().value.as_ref().unwrap() {
        any_value::Value::StringValue(value) => format!("{}={value}", pair.key),
        any_value::Value::IntValue(value) => format!("{}=#{value}", pair.key),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(text).collect()
}

fn find<'a>(all: &'a [Metric], name: &str) -> &'a Metric {
    all.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name} in {all:?}"))
}

fn sum(metric: &Metric) -> (&NumberDataPoint, i32, bool) {
    match metric.data.as_ref().unwrap() {
        metric::Data::Sum(sum) => (&sum.data_points[0], sum.aggregation_temporality, sum.is_monotonic),
        other => panic!("{other:?}"),
    }
}

const PROCESS: [&str; 6] = [
    "process.pid=#7",
    "process.executable.name=a\"b\\\n",
    "container.id=cafe",
    "k8s.container.name=c",
    "k8s.pod.name=pod",
    "k8s.namespace.name=ns",
];

#[test]
fn a_counter_is_a_monotonic_sum_with_the_attributes_of_its_process() {
    let all = written(&mut writer(Temporality::Cumulative), &snapshot(200, 5));
    let calls = find(&all, "gpuprobe.calls");
    let help = "Calls of a GPU API function that returned.";
    assert_eq!((calls.description.as_str(), calls.unit.as_str()), (help, ""));
    let (point, temporality, is_monotonic) = sum(calls);
    assert_eq!((temporality, is_monotonic), (2, true));
    assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (100 * SECOND, 200 * SECOND));
    assert_eq!(point.value, Some(number_data_point::Value::AsInt(5)));
    let of = ["gpuprobe.api=driver", "gpuprobe.function=cuMemAlloc_v2"];
    assert_eq!(texts(&point.attributes), [PROCESS.as_slice(), of.as_slice()].concat());
    let (errors, ..) = sum(find(&all, "gpuprobe.errors"));
    assert_eq!(texts(&errors.attributes)[7], "error.type=CUDA_ERROR_OUT_OF_MEMORY");
    let (xids, ..) = sum(find(&all, "gpuprobe.xid_errors"));
    let uuid = "GPU-11111111-1111-1111-1111-111111111111";
    let expected = ["gpuprobe.gpu=4", "gpuprobe.xid=31", &format!("hw.id={uuid}")];
    assert_eq!((texts(&xids.attributes), xids.value), (expected.map(str::to_owned).to_vec(), int(2)));
}

fn int(n: i64) -> Option<number_data_point::Value> {
    Some(number_data_point::Value::AsInt(n))
}

#[test]
fn gauges_and_sums_that_fall_are_totals_also_with_delta() {
    let all = written(&mut writer(Temporality::Delta), &snapshot(200, 5));
    let files = find(&all, "process.unix.file_descriptor.count");
    let (point, temporality, is_monotonic) = sum(files);
    assert_eq!((temporality, is_monotonic, point.value), (2, false, int(12)));
    let (cpu, temporality, is_monotonic) = sum(find(&all, "process.cpu.time"));
    let seconds = Some(number_data_point::Value::AsDouble(1.5));
    assert_eq!((temporality, is_monotonic, cpu.value), (1, true, seconds));
    let Some(metric::Data::Gauge(build)) = &find(&all, "gpuprobe.build_info").data else { panic!() };
    let point = &build.data_points[0];
    assert_eq!((point.start_time_unix_nano, point.value), (0, int(1)));
    assert_eq!(texts(&point.attributes), [format!("gpuprobe.version={}", env!("CARGO_PKG_VERSION"))]);
}

#[test]
fn a_histogram_has_the_bounds_of_the_text_formats() {
    let mut writer = writer(Temporality::Delta);
    written(&mut writer, &snapshot(200, 5));
    let all = written(&mut writer, &snapshot(215, 9));
    let Some(metric::Data::Histogram(histogram)) = &find(&all, "gpuprobe.call_duration_seconds").data else {
        panic!()
    };
    let point = &histogram.data_points[0];
    assert_eq!((histogram.aggregation_temporality, point.count), (1, 4));
    assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (200 * SECOND, 215 * SECOND));
    assert_eq!(point.bucket_counts, [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((point.sum, point.min, point.max), (Some(0.0), None, None));
    let text = crate::encode(&snapshot(1, 5), crate::Format::Prometheus);
    let bounds = text.lines().filter(|line| line.contains("_bucket{") && !line.contains("+Inf"));
    let bounds: Vec<f64> = bounds
        .map(|line| line.split("le=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(point.explicit_bounds, bounds);
    assert_eq!(texts(&point.attributes), ["gpuprobe.api=driver", "gpuprobe.function=cuMemAlloc_v2"]);

    let mut cumulative = super::tests::writer(Temporality::Cumulative);
    let all = written(&mut cumulative, &snapshot(200, 5));
    let Some(metric::Data::Histogram(histogram)) = &find(&all, "gpuprobe.call_duration_seconds").data else {
        panic!()
    };
    let point = &histogram.data_points[0];
    assert_eq!((point.count, point.sum), (5, Some(2.5)));
    assert_eq!(point.bucket_counts, [3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_large_snapshot_becomes_several_requests_without_a_point_less() {
    let mut large = snapshot(200, 5);
    large.processes = (1..500).map(|pid| process(pid, 5, 1)).collect();
    let mut writer = writer(Temporality::Cumulative);
    writer.most_bytes = 64 << 10;
    let payloads = writer.write(&large, &Arc::default());
    assert!(payloads.len() > 5, "{}", payloads.len());
    let (mut pids, mut items) = (Vec::new(), 0);
    for payload in &payloads {
        let request = metrics_of(&payload.body);
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        items += metrics.iter().map(count).sum::<usize>();
        for calls in metrics.iter().filter(|metric| metric.name == "gpuprobe.calls") {
            let Some(metric::Data::Sum(sum)) = &calls.data else { panic!() };
            pids.extend(sum.data_points.iter().map(|point| texts(&point.attributes)[0].clone()));
        }
    }
    let expected: Vec<String> = (1..500).map(|pid| format!("process.pid=#{pid}")).collect();
    assert_eq!(pids, expected);
    assert_eq!(items as u64, payloads.iter().map(|payload| payload.items).sum::<u64>());
}
