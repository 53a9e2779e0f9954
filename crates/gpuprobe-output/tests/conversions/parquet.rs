//! Parquet, read back and compared with the lines of the trace.

use std::io::{self, Write};

use bytes::Bytes;
use gpuprobe_event::agent::RangeKind;
use gpuprobe_event::trace::{Line, Lines, Meta, Phases, Reader};
use gpuprobe_event::{Event, LossCause, LossEvent, RangeEvent, Tgid, Tid};
use gpuprobe_output::{Conversion, Converted, Target};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::Value;

use super::{SAMPLE, convert};

const EVERY_KIND_OF_LINE: &str = include_str!("../../../gpuprobe-event/src/trace/golden.jsonl");
const GPU_TIME: &str = include_str!("../../../../tests/traces/gpu_time.jsonl");

fn reader(file: Vec<u8>) -> SerializedFileReader<Bytes> {
    SerializedFileReader::new(Bytes::from(file)).unwrap()
}

/// The fields of each row that have a value.
fn rows(file: Vec<u8>) -> Vec<Vec<(String, Field)>> {
    let has_value = |(_, field): &(&String, &Field)| !matches!(field, Field::Null);
    let row = |row: parquet::errors::Result<parquet::record::Row>| {
        let row = row.unwrap();
        row.get_column_iter().filter(has_value).map(|(name, field)| (name.clone(), field.clone())).collect()
    };
    reader(file).get_row_iter(None).unwrap().map(row).collect()
}

/// The lines of a trace as they are written now.
fn lines(trace: &str) -> Vec<Value> {
    let mut reader = Reader::new(trace.as_bytes()).unwrap();
    let phases = if trace.contains("\"phase\":\"E\"") { Phases::Separate } else { Phases::Together };
    let (mut writer, mut out) = (Lines::new(phases), Vec::new());
    while let Some(line) = reader.read().unwrap() {
        if let Line::Event(event) = line {
            writer.event(&event, &mut out);
        }
    }
    serde_json::Deserializer::from_slice(&out).into_iter().map(Result::unwrap).collect()
}

/// What the columns contain, as it is in a line.
fn as_in_line(name: &str, field: &Field, line: &Value) -> Value {
    match field {
        Field::Bool(is) => (*is).into(),
        Field::Long(n) => (*n).into(),
        Field::Double(n) => (*n).into(),
        Field::Str(text) if matches!(line[name], Value::Object(_) | Value::Array(_)) => {
            serde_json::from_str(text).unwrap()
        }
        Field::Str(text) if line[name].is_u64() => text.parse::<u64>().unwrap().into(),
        Field::Str(text) => text.as_str().into(),
        Field::Group(parts) => {
            parts.get_column_iter().map(|(_, part)| as_in_line("", part, &Value::Null)).collect()
        }
        Field::ListInternal(list) => {
            list.elements().iter().map(|element| as_in_line("", element, &Value::Null)).collect()
        }
        other => panic!("{name} is {other:?}"),
    }
}

fn assert_same(trace: &str) {
    let (file, converted, _) = convert(trace, Target::Parquet);
    let (rows, lines) = (rows(file), lines(trace));
    assert_eq!((rows.len(), converted.rows), (lines.len(), Some(lines.len() as u64)));
    let start_unix = Reader::new(trace.as_bytes()).unwrap().meta().start_unix;
    for (row, mut line) in rows.into_iter().zip(lines) {
        if line["type"] == "process" && line["live"].is_object() {
            line["live_by_kind"] = line.as_object_mut().unwrap().remove("live").unwrap();
        }
        for (name, field) in &row {
            if let ("time", Field::TimestampMicros(us)) = (name.as_str(), field) {
                let since_start = *us - (start_unix * 1e6).round() as i64;
                assert_eq!(since_start, (line["ts"].as_f64().unwrap() * 1e9).round() as i64 / 1000);
                continue;
            }
            assert_eq!(as_in_line(name, field, &line), line[name], "{name} of {line}");
        }
        let in_line = line.as_object().unwrap().len();
        assert_eq!(row.len() - usize::from(row.iter().any(|(name, _)| name == "time")), in_line, "{line}");
    }
}

#[test]
fn every_field_of_every_line_is_in_its_column() {
    for trace in [EVERY_KIND_OF_LINE, SAMPLE, GPU_TIME, super::WITH_STACKS] {
        assert_same(trace);
    }
}

const WITH_PHASES: &str = r#"{"type":"meta","format":3,"gpuprobe":"0.1.0","host":"h","kernel":"k","clock":"monotonic","start_unix":1e300}
{"event_id":1,"ts":0.001,"type":"sync","name":"cudaDeviceSynchronize","phase":"B","pid":7,"tid":7,"process":"app","api":"runtime"}
{"event_id":1,"ts":0.003,"type":"sync","name":"cudaDeviceSynchronize","phase":"E","pid":7,"tid":7,"process":"app","duration_us":2000.0,"api":"runtime","ret":0}
{"event_id":2,"ts":0.004,"type":"sync","name":"cudaDeviceSynchronize","phase":"B","pid":7,"tid":7,"process":"app","unfinished":true,"api":"runtime"}
"#;

#[test]
fn a_call_in_two_lines_has_two_rows_and_is_one_call() {
    assert_same(WITH_PHASES);
    let (file, converted, _) = convert(WITH_PHASES, Target::Parquet);
    let expected = Converted { calls: 2, unfinished: 1, rows: Some(3), ..Converted::default() };
    assert_eq!(converted, expected);
    // the trace does not say when it began
    assert!(rows(file).iter().flatten().all(|(name, _)| name != "time"));
}

#[test]
fn a_number_that_a_column_cannot_hold_is_counted() {
    let trace =
        WITH_PHASES.replace("\"ret\":0", "\"ret\":0,\"driver_calls\":9223372036854775808,\"driver_us\":1.0");
    let (file, converted, _) = convert(&trace, Target::Parquet);
    assert_eq!((converted.too_large, converted.rows), (1, Some(3)));
    assert!(rows(file).iter().flatten().all(|(name, _)| name != "driver_calls"));
    let trace = trace.replace("9223372036854775808", "9223372036854775807");
    let (file, converted, _) = convert(&trace, Target::Parquet);
    assert_eq!(converted.too_large, 0);
    let largest = ("driver_calls".to_owned(), Field::Long(i64::MAX));
    assert!(rows(file).iter().flatten().any(|found| *found == largest));
}

#[test]
fn the_first_and_the_last_line_are_known_of_the_whole_file() {
    let known = |trace: &str| {
        let (file, ..) = convert(trace, Target::Parquet);
        let reader = reader(file);
        let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap().clone();
        pairs.into_iter().map(|pair| (pair.key, pair.value.unwrap())).collect::<Vec<_>>()
    };
    let of_whole = known(GPU_TIME);
    for expected in [
        ("meta.host", "node"),
        ("meta.start_unix", "1700000000.0"),
        ("meta.command", r#"["python","train.py"]"#),
        ("end.events", "34"),
        ("end.lost", r#"{"lost_execution":2}"#),
    ] {
        assert!(
            of_whole.iter().any(|(key, value)| (key.as_str(), value.as_str()) == expected),
            "{expected:?}"
        );
    }
    let cut = &GPU_TIME[..GPU_TIME.find("{\"type\":\"end\"").unwrap()];
    let of_cut = known(cut);
    assert!(of_cut.len() < of_whole.len());
    assert!(of_cut.iter().all(|(key, _)| key.starts_with("meta.")));
}

#[test]
fn a_truncated_trace_is_converted_up_to_its_end() {
    let first = SAMPLE.find('\n').unwrap() + 1;
    let cuts = (first..SAMPLE.len()).filter(|at| SAMPLE.is_char_boundary(*at)).step_by(97);
    for cut in cuts {
        let (file, converted, _) = convert(&SAMPLE[..cut], Target::Parquet);
        assert_eq!(Some(rows(file).len() as u64), converted.rows, "cut at {cut}");
    }
}

/// Rows of each group.
fn groups(file: Vec<u8>) -> Vec<i64> {
    reader(file).metadata().row_groups().iter().map(RowGroupMetaData::num_rows).collect()
}

fn converted(events: impl Iterator<Item = Event>) -> Vec<u8> {
    let mut file = Vec::new();
    let mut conversion = Conversion::new(Target::Parquet, &Meta::default(), &mut file).unwrap();
    events.for_each(|event| conversion.feed(event).unwrap());
    conversion.finish(None).unwrap();
    file
}

#[test]
fn rows_are_written_in_groups_of_a_bounded_size() {
    let loss = |at_ns| Event::Loss(LossEvent { at_ns, cause: LossCause::RingFull, count: 1 });
    assert_eq!(groups(converted((0..200_000).map(loss))), [65_536, 65_536, 65_536, 200_000 - 3 * 65_536]);
    assert_eq!(groups(converted((0..65_536).map(loss))), [65_536]);
    assert_eq!(groups(converted(std::iter::empty())), [0_i64; 0]);
    let range = |id, name: String| {
        Event::Range(Box::new(RangeEvent {
            id,
            tgid: Tgid(1),
            tid: Tid(1),
            process: "p".into(),
            kind: RangeKind::Mark,
            start_ns: id,
            end_ns: id,
            domain: None,
            name: name.into(),
            color: 0,
        }))
    };
    let long = |id: u64| "n".repeat(1 << 20) + &id.to_string();
    // a text is in memory twice, but only once for all rows that have it
    assert_eq!(groups(converted((0..40_u64).map(|id| range(id, long(id))))), [16, 16, 8]);
    assert_eq!(groups(converted((0..70_u64).map(|id| range(id, long(1))))), [70]);
}

/// A reader finds out that the file is not complete, also if everything but the end is there.
#[test]
fn a_file_without_its_end_is_refused() {
    let (file, ..) = convert(SAMPLE, Target::Parquet);
    for length in [0, 4, file.len() / 2, file.len() - 1] {
        assert!(SerializedFileReader::new(Bytes::from(file[..length].to_vec())).is_err(), "{length}");
    }
}

/// Accepts so many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_error_of_the_output_is_returned() {
    let (file, ..) = convert(SAMPLE, Target::Parquet);
    let result = |room| {
        let mut reader = Reader::new(SAMPLE.as_bytes()).unwrap();
        let mut conversion = Conversion::new(Target::Parquet, reader.meta(), Full(room))?;
        let mut end = None;
        while let Some(line) = reader.read().unwrap() {
            match line {
                Line::Event(event) => conversion.feed(event)?,
                Line::End(last) => end = Some(last),
            }
        }
        conversion.finish(end.as_ref())
    };
    assert_eq!(result(file.len()).unwrap().rows, Some(27));
    for room in [0, 4, file.len() / 2, file.len() - 1] {
        assert_eq!(result(room).unwrap_err().kind(), io::ErrorKind::StorageFull, "{room}");
    }
}
