//! Reads events from JSON lines. A damaged line is skipped and counted; a truncated file is read up to its last
//! complete line.

mod agent_line;
mod earlier;
mod effect_fields;
mod out_of_memory_line;
mod stacks;

use std::borrow::Cow;
use std::io::{self, BufRead};
use std::sync::Arc;

use thiserror::Error;

use super::json::{Document, Json, Object};
use super::{AGENT, EXECUTION, End, FORMAT, Meta, OUT_OF_MEMORY, RANGE};
use crate::catalogue::{Api, Class, Function};
use crate::cut::cut;
use crate::decode::status;
use crate::effect::{Effect, GraphContents, GraphLaunch};
use crate::errno;
use crate::event::{
    Call, Event, Evidence, LossEvent, Name, Outcome, ProcessChange, ProcessEvent, Value, XidEvent, XidProcess,
};
use crate::ids::{Tgid, Tid};
use crate::loss::LossCause;
use crate::rank::Rank;
use earlier::Earlier;

/// Why a trace cannot be read at all.
#[derive(Debug, Error)]
pub enum ReadError {
    /// An I/O error.
    #[error("cannot read the trace: {0}")]
    Io(#[from] io::Error),
    /// The first line is not a meta line.
    #[error("not a gpuprobe trace: its first line is not a \"meta\" object")]
    NotATrace,
    /// Written by a newer version.
    #[error("the trace has format {0}, this program reads up to {FORMAT}: use a newer gpuprobe")]
    TooNew(u32),
    /// Too many damaged lines.
    #[error(
        "the trace is damaged: {lines} lines ({bytes} bytes) are invalid, and reading stops here; record it again"
    )]
    Damaged {
        /// The number of skipped lines.
        lines: u64,
        /// Their total length.
        bytes: u64,
    },
}

/// One line of a trace after the first.
#[derive(Debug, PartialEq)]
pub enum Line {
    /// An event.
    Event(Event),
    /// The end of a complete trace.
    End(End),
}

/// A longer line is damaged; it is skipped without being kept in memory.
const MAX_LINE: usize = 1 << 20;

/// Reading stops after this many damaged or empty lines, or bytes of such lines: a small compressed file can expand
/// to any number of them.
const MOST_DAMAGED: u64 = 10_000;
const MOST_DAMAGED_BYTES: u64 = 2 << 30;

/// Limits of texts in a line, in bytes. Tables made from a trace have a limited number of rows, so these limits bound
/// their memory. What gpuprobe writes is shorter, except for frames with extremely long names.
mod most {
    /// The name of a process, a kind, an error, an argument.
    pub(super) const NAME: usize = 256;
    /// The name of a function that is not in the catalogue, or of a frame.
    pub(super) const FUNCTION: usize = 1024;
    /// The name of a CUDA kernel, as it is recorded.
    pub(super) const KERNEL: usize = 4096;
    /// A stack with all its frames.
    pub(super) const STACK: usize = 32 << 10;
    /// Frames of a stack, and entries of other lists.
    pub(super) const ENTRIES: usize = 256;
}

/// The first format with the field `nested`. Before, an effect on memory inside any other call counted as an effect
/// of that call.
const FORMAT_WITH_NESTED: u32 = 2;

/// Reads a trace line by line. Its memory does not grow with the trace.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    meta: Meta,
    damaged: u64,
    damaged_bytes: u64,
    /// Bytes of the last line, with its line feed.
    line_bytes: u64,
    buffer: Vec<u8>,
    document: Document,
    earlier: Earlier,
}

impl<R: BufRead> Reader<R> {
    pub fn new(input: R) -> Result<Self, ReadError> {
        let mut reader = Self {
            input,
            meta: Meta::default(),
            damaged: 0,
            damaged_bytes: 0,
            line_bytes: 0,
            buffer: Vec::new(),
            document: Document::default(),
            earlier: Earlier::default(),
        };
        let Some(true) = reader.next_line()? else { return Err(ReadError::NotATrace) };
        let line = std::str::from_utf8(&reader.buffer).ok();
        let Some(line) = line.and_then(|line| reader.document.parse(line)?.as_object()) else {
            return Err(ReadError::NotATrace);
        };
        if line.get("type").and_then(Json::as_str) != Some("meta") {
            return Err(ReadError::NotATrace);
        }
        let format = small(line, "format").unwrap_or(u32::MAX);
        if format > FORMAT {
            return Err(ReadError::TooNew(format));
        }
        let meta = serde_json::from_slice(&reader.buffer);
        reader.earlier.format = format;
        reader.meta = meta.unwrap_or(Meta { format, ..Meta::default() });
        Ok(reader)
    }

    /// The meta line.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The number of skipped lines.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Memory kept between lines, in bytes.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        self.buffer.capacity() + self.earlier.names.kept_bytes()
    }

    /// The next valid line; `None` at the end of the file.
    pub fn read(&mut self) -> Result<Option<Line>, ReadError> {
        loop {
            match self.next_line()? {
                None => return Ok(None),
                Some(false) => self.skip()?,
                Some(true) => match self.earlier.line(&self.buffer, &mut self.document) {
                    Some(line) => return Ok(Some(line)),
                    None => self.skip()?,
                },
            }
        }
    }

    /// Counts a damaged line; an error if there are too many.
    fn skip(&mut self) -> Result<(), ReadError> {
        self.damaged += 1;
        self.damaged_bytes += self.line_bytes;
        self.check_damage(0)
    }

    fn check_damage(&self, more: u64) -> Result<(), ReadError> {
        let bytes = self.damaged_bytes + more;
        if self.damaged > MOST_DAMAGED || bytes > MOST_DAMAGED_BYTES {
            return Err(ReadError::Damaged { lines: self.damaged, bytes });
        }
        Ok(())
    }

    /// Reads the next line into the buffer; `Some(false)` if it was too long or truncated.
    fn next_line(&mut self) -> Result<Option<bool>, ReadError> {
        self.buffer.clear();
        self.line_bytes = 0;
        let mut kept = true;
        loop {
            if !kept {
                self.check_damage(self.line_bytes)?;
            }
            let available = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // the end of a truncated compressed file
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => &[],
                available => available?,
            };
            if available.is_empty() {
                let cut = !self.buffer.is_empty() || !kept;
                // the last line was being written when the recording stopped
                return Ok(if cut { Some(false) } else { None });
            }
            let end = memchr::memchr(b'\n', available);
            let piece = &available[..end.unwrap_or(available.len())];
            kept = kept && self.buffer.len() + piece.len() <= MAX_LINE;
            if kept {
                self.buffer.extend_from_slice(piece);
            }
            let consumed = end.map_or(available.len(), |e| e + 1);
            self.input.consume(consumed);
            self.line_bytes += consumed as u64;
            if end.is_some() {
                return Ok(Some(kept));
            }
        }
    }
}

impl Earlier {
    fn line(&mut self, line: &[u8], document: &mut Document) -> Option<Line> {
        // once for the line, which is faster than for each of its strings
        let line = std::str::from_utf8(line).ok()?;
        let object = document.parse(line)?.as_object()?;
        Some(match object.get("type")?.as_str()? {
            "end" => Line::End(serde_json::from_str(line).ok()?),
            "process" => Line::Event(Event::Process(self.process(object)?)),
            "loss" => Line::Event(Event::Loss(LossEvent {
                at_ns: nanoseconds(object)?,
                cause: LossCause::from_name(object.get("name")?.as_str()?)?,
                count: object.get("count")?.as_u64()?,
            })),
            "kernel" if object.contains_key("xid") => Line::Event(Event::Xid(Box::new(self.xid(object)?))),
            OUT_OF_MEMORY => Line::Event(Event::OutOfMemory(Box::new(self.out_of_memory(object)?))),
            EXECUTION => Line::Event(Event::Execution(Box::new(self.execution(object)?))),
            RANGE => Line::Event(Event::Range(Box::new(self.range(object)?))),
            AGENT => Line::Event(Event::Agent(Box::new(self.agent(object)?))),
            _ => Line::Event(Event::Call(Box::new(self.call(object)?))),
        })
    }

    fn call(&mut self, object: Object<'_>) -> Option<Call> {
        let api = Api::from_name(object.get("api")?.as_str()?)?;
        let known = self.functions.find(api, object.get("name")?.as_str()?);
        let ret = object.get("ret").and_then(Json::as_i64);
        let has_error = object.contains_key("error");
        let status = ret.filter(|ret| match known {
            Some(f) => status(f, ret.cast_unsigned()).is_some(),
            // a hooked function may return any value
            None if api == Api::Hook => has_error && api.is_failure(*ret),
            // nothing is known about a function of the Linux kernel, except that errors are negative
            None => api != Api::Kernel || errno::is_error(*ret),
        });
        let mut start_ns = nanoseconds(object)?;
        let outcome = match object.get("phase")?.as_str()? {
            phase @ ("X" | "E") => {
                let duration_ns = scaled(object.get("duration_us")?, 3)?;
                if phase == "E" {
                    start_ns = start_ns.checked_sub(duration_ns)?;
                }
                start_ns.checked_add(duration_ns).filter(|end| *end < END_OF_TIME)?;
                Outcome::Returned { value: ret.unwrap_or(0).cast_unsigned(), duration_ns }
            }
            "i" => Outcome::Instant,
            _ if object.contains_key("unfinished") => Outcome::Unfinished,
            _ if object.contains_key("unobserved") => Outcome::Unobserved,
            _ => Outcome::Begun,
        };
        let parent = number(object, "parent");
        let class = known.map_or_else(|| class(object), |f| f.class);
        let tgid = Tgid(small(object, "pid")?);
        let effect = self.effect(object, api, class, tgid);
        let site = effect_fields::own_site(object, &effect);
        Some(Call {
            id: number(object, "event_id")?,
            parent,
            depth: u8::from(parent.is_some()),
            nested: match self.format {
                ..FORMAT_WITH_NESTED => parent.is_some() && effect_fields::counts_memory(class),
                _ => object.get("nested").and_then(Json::as_bool).unwrap_or(false),
            },
            weight: number(object, "weight").and_then(|n| u16::try_from(n).ok()).unwrap_or(1).max(1),
            start_ns,
            outcome,
            return_probed: object.get("return_probed").and_then(Json::as_bool).unwrap_or(true),
            tgid,
            tid: Tid(small(object, "tid")?),
            process: self.names.share(object.get("process")?.as_str()?, most::NAME),
            api,
            name: match known {
                Some(function) => Cow::Borrowed(function.name),
                None => text(object, "name", most::FUNCTION).unwrap_or_default(),
            },
            class,
            status,
            // the status of an ioctl is not the return value of the call
            error: text(object, "error", most::NAME).filter(|_| api.may_have_failed(status)),
            args: object.get("args").and_then(Json::as_object).map(|o| arguments(o, known)),
            stream: hex_field(object, "stream"),
            driver: effect_fields::driver_time(object),
            stack: self.stacks.of_call(object, site.or(effect.allocation().and_then(|made| made.site))),
            effect,
            site,
        })
    }

    fn effect(&mut self, object: Object<'_>, api: Api, class: Class, tgid: Tgid) -> Effect {
        let kernel = object.get("kernel").and_then(Json::as_str);
        let kernel = kernel.map(|kernel| self.names.share(kernel, most::KERNEL));
        let mut effect = effect_fields::effect(object, api, class, kernel);
        if let Effect::GraphLaunch(GraphLaunch { graph: Some(graph), contents, .. }) = &mut effect {
            *contents = self.graph_contents(object, (tgid, *graph));
        }
        effect
    }

    /// The contents of a graph, from this line or from an earlier one.
    fn graph_contents(&mut self, object: Object<'_>, graph: (Tgid, u64)) -> Option<Arc<GraphContents>> {
        let Some(list) = object.get("graph_kernels").and_then(Json::as_list) else {
            return self.graphs.get(graph);
        };
        let mut kernels = Vec::new();
        for kernel in list.filter_map(Json::as_object).take(GraphContents::MOST_KERNELS + 1) {
            let name = kernel.get("kernel").and_then(Json::as_str);
            let name = name.map(|name| self.names.share(name, most::KERNEL));
            kernels.push((name, number(kernel, "count")?));
        }
        Some(self.graphs.add(graph, GraphContents::of(kernels)))
    }

    fn xid(&mut self, object: Object<'_>) -> Option<XidEvent> {
        let listed = object.get("processes").and_then(Json::as_list);
        let processes = listed.into_iter().flatten().take(most::ENTRIES).filter_map(|process| {
            let process = process.as_object()?;
            let evidence = match process.get("evidence")?.as_str()? {
                "named" => Evidence::Named,
                "opened" => Evidence::Opened,
                _ => Evidence::Watched,
            };
            let name = self.names.share(process.get("process")?.as_str()?, most::NAME);
            Some(XidProcess { tgid: Tgid(small(process, "pid")?), process: name, evidence })
        });
        let processes = processes.collect();
        Some(XidEvent {
            id: number(object, "event_id")?,
            at_ns: nanoseconds(object)?,
            number: small(object, "xid")?,
            gpu: self.names.share(object.get("pci")?.as_str()?, most::NAME),
            message: self.names.share(object.get("message")?.as_str()?, most::KERNEL),
            processes,
        })
    }

    fn process(&mut self, object: Object<'_>) -> Option<ProcessEvent> {
        Some(ProcessEvent {
            id: number(object, "event_id")?,
            at_ns: nanoseconds(object)?,
            change: match object.get("name")?.as_str()? {
                "start" => ProcessChange::Start,
                "exec" => ProcessChange::Exec,
                "exit" => ProcessChange::Exit,
                _ => return None,
            },
            tgid: Tgid(small(object, "pid")?),
            tid: Tid(small(object, "tid")?),
            process: self.names.share(object.get("process")?.as_str()?, most::NAME),
            parent: small(object, "ppid").map(Tgid),
            ns_pid: small(object, "ns_pid").map(Tgid),
            container: object
                .get("container")
                .and_then(Json::as_str)
                .map(|id| self.names.share(id, most::NAME)),
            exit_status: object.get("exit_status").and_then(Json::as_i64).and_then(|n| i32::try_from(n).ok()),
            rank: rank(object),
            live: effect_fields::memory(object, "live"),
        })
    }
}

/// The class of a function that is not in the catalogue, from the fields of its line.
fn class(object: Object<'_>) -> Class {
    let named = object.get("class").and_then(Json::as_str).and_then(Class::from_name);
    named.unwrap_or_else(|| match object.get("type").and_then(Json::as_str) {
        Some("kernel") => Class::Driver,
        Some("scheduler") => Class::Scheduler,
        _ => Class::Other,
    })
}

fn rank(object: Object<'_>) -> Option<Rank> {
    let variable = text(object, "rank_variable", most::NAME).unwrap_or_default().into_owned();
    Some(Rank { variable, number: small(object, "rank")? })
}

#[inline(always)]
fn number(object: Object<'_>, field: &str) -> Option<u64> {
    object.get(field)?.as_u64()
}

#[inline(always)]
fn small(object: Object<'_>, field: &str) -> Option<u32> {
    number(object, field).and_then(|n| u32::try_from(n).ok())
}

fn text(object: Object<'_>, field: &str, most: usize) -> Option<Name> {
    object.get(field)?.as_str().map(|text| owned(text, most))
}

fn owned(text: &str, most: usize) -> Name {
    Cow::Owned(cut(text, most).into_owned())
}

fn hex(text: &str) -> Option<u64> {
    const MOST_DIGITS: usize = 16;
    let digits = text.strip_prefix("0x")?;
    if digits.is_empty() || digits.len() > MOST_DIGITS {
        return None;
    }
    digits.bytes().try_fold(0, |n, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        Some(n << 4 | u64::from(digit))
    })
}

#[inline(always)]
fn hex_field(object: Object<'_>, field: &str) -> Option<u64> {
    hex(object.get(field)?.as_str()?)
}

/// Later times, in nanoseconds, are damage: other programs cannot represent them.
const END_OF_TIME: u64 = 9_000_000_000_000_000_000;

/// A number times this power of ten, in nanoseconds; `None` if out of range.
#[inline]
fn scaled(json: Json<'_>, power: u8) -> Option<u64> {
    json.scaled(power).filter(|ns| *ns < END_OF_TIME)
}

#[inline(always)]
fn nanoseconds(object: Object<'_>) -> Option<u64> {
    scaled(object.get("ts")?, 9)
}

fn dim3(json: Json<'_>) -> Option<[u32; 3]> {
    let [x, y, z] = json.as_array()?;
    let part = |j: Json<'_>| j.as_u64().and_then(|n| u32::try_from(n).ok());
    Some([part(x)?, part(y)?, part(z)?])
}

/// The arguments of a call. Names that the catalogue has are not copied: a trace has millions of them.
fn arguments(object: Object<'_>, function: Option<&'static Function>) -> Vec<(Name, Value)> {
    let known = function.and_then(|function| function.args.as_ref());
    let argument = |(at, (name, json)): (usize, (&str, Json<'_>))| {
        let arg = known.and_then(|args| args.get(at)).filter(|arg| arg.name == name);
        (arg.map_or_else(|| owned(name, most::NAME), |arg| Cow::Borrowed(arg.name)), value(json, 0))
    };
    object.iter().take(most::ENTRIES).enumerate().map(argument).collect()
}

fn values(object: Object<'_>, depth: u32) -> Vec<(Name, Value)> {
    let fields = object.iter().take(most::ENTRIES);
    fields.map(|(name, json)| (owned(name, most::NAME), value(json, depth))).collect()
}

fn value(json: Json<'_>, depth: u32) -> Value {
    // real arguments nest two deep; the parser refuses more than 127
    const DEEPEST: u32 = 8;
    if let Some(n) = json.as_u64() {
        Value::Uint(n)
    } else if let Some(text) = json.as_str() {
        hex(text).map_or_else(|| Value::Name(owned(text, most::KERNEL)), Value::Hex)
    } else if let Some(n) = json.as_i64() {
        Value::Int(n)
    } else if let Some(fields) = json.as_object() {
        if depth < DEEPEST { Value::Struct(values(fields, depth + 1)) } else { Value::Unread }
    } else {
        dim3(json).map_or(Value::Unread, Value::Dim3)
    }
}
