//! Prints events on its own thread, so that a slow reader of stdout does not block the capture. Events that do not fit
//! into the queue are dropped and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gpuprobe_event::trace::{End, Lines, Meta, Phases, end_line, meta_line};
use gpuprobe_event::{Event, Outcome};
use gpuprobe_output::{Live, LiveOptions};

/// Most events in the queue. Each takes about a kilobyte, so this bounds the memory of the tracer.
const MOST_WAITING: u64 = 1 << 17;
/// Bytes per write.
const CHUNK: usize = 1 << 14;
/// How long a reader may take for one write at the end.
const PATIENCE: Duration = Duration::from_secs(3);

/// The output format.
pub(crate) enum Form {
    /// Lines for people.
    Text(LiveOptions),
    /// A trace.
    Json { phases: Phases, meta: Box<Meta> },
}

#[derive(Debug)]
enum Item {
    Events(Vec<Event>),
    Text(String),
    End(Box<End>),
}

#[derive(Debug, Default)]
struct Shared {
    /// Events in the queue.
    waiting: AtomicU64,
    /// Written lines of calls.
    printed: AtomicU64,
    /// Number of writes.
    writes: AtomicU64,
    closed: AtomicBool,
}

/// The printing thread and its queue.
#[derive(Debug)]
pub(crate) struct Printer {
    queue: Sender<Item>,
    thread: JoinHandle<io::Result<()>>,
    shared: Arc<Shared>,
    sent: u64,
    dropped: u64,
}

impl Printer {
    /// Starts to print to stdout.
    pub(crate) fn start(form: Form) -> Result<Self> {
        let (queue, items) = channel();
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name("printer".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || print(form, &items, &shared)
            })
            .context("cannot start the thread that prints")?;
        Ok(Self { queue, thread, shared, sent: 0, dropped: 0 })
    }

    /// Queues events, and counts the calls that do not fit.
    pub(crate) fn events(&mut self, mut events: Vec<Event>) {
        let room = MOST_WAITING.saturating_sub(self.shared.waiting.load(Ordering::Relaxed));
        let kept = events.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.dropped += count_calls(&events.split_off(kept));
        if events.is_empty() {
            return;
        }
        let calls = count_calls(&events);
        self.sent += calls;
        self.shared.waiting.fetch_add(events.len() as u64, Ordering::Relaxed);
        // if the thread has ended, stdout is closed; `is_closed` reports that
        self.queue.send(Item::Events(events)).ok();
    }

    /// Prints a text between the lines.
    pub(crate) fn text(&mut self, text: String) {
        self.queue.send(Item::Text(text)).ok();
    }

    /// Whether stdout is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    /// Dropped calls up to now.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Prints the rest of the queue and the last line of a trace. Returns the number of printed calls, and of calls
    /// dropped because the reader was too slow. If the reader has closed stdout, nothing counts as dropped.
    pub(crate) fn finish(self, end: End) -> Result<(u64, u64)> {
        let Self { queue, thread, shared, sent, mut dropped } = self;
        queue.send(Item::End(Box::new(end))).ok();
        drop(queue);
        let printed = |shared: &Shared| shared.printed.load(Ordering::Relaxed);
        if !has_exited(&thread, &shared) {
            // the thread is stuck in a write and ends with the process
            let printed = printed(&shared);
            return Ok((printed, dropped + sent - printed));
        }
        match thread.join() {
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(error).context("cannot write the output");
            }
            Ok(Err(_)) => dropped = 0,
            _ => {}
        }
        Ok((printed(&shared), dropped))
    }
}

/// Waits for the thread as long as the reader makes progress.
fn has_exited(thread: &JoinHandle<io::Result<()>>, shared: &Shared) -> bool {
    let (mut seen, mut since) = (0, Instant::now());
    while !thread.is_finished() {
        let now = shared.writes.load(Ordering::Relaxed);
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Lines of calls: one per call, or two if entries are printed too.
fn count_calls(events: &[Event]) -> u64 {
    events.iter().filter(|event| matches!(event, Event::Call(_))).count() as u64
}

fn print(form: Form, items: &Receiver<Item>, shared: &Shared) -> io::Result<()> {
    let printed = print_items(&mut Page::new(form), items, shared);
    shared.closed.store(printed.is_err(), Ordering::Relaxed);
    printed
}

fn print_items(page: &mut Page, items: &Receiver<Item>, shared: &Shared) -> io::Result<()> {
    page.write_out(shared)?;
    while let Ok(item) = items.recv() {
        match item {
            Item::Text(text) => page.bytes.extend_from_slice(text.as_bytes()),
            Item::End(end) => page.end(*end),
            Item::Events(events) => {
                for event in &events {
                    page.event(event);
                    if page.bytes.len() >= CHUNK {
                        page.write_out(shared)?;
                    }
                }
                shared.waiting.fetch_sub(events.len() as u64, Ordering::Relaxed);
            }
        }
        page.write_out(shared)?;
    }
    Ok(())
}

/// Lines that are not written yet.
struct Page {
    live: Option<Live>,
    lines: Lines,
    line: String,
    bytes: Vec<u8>,
    /// Lines of calls in `bytes`.
    calls: u64,
    /// All events of the trace.
    events: u64,
    returned: u64,
}

impl Page {
    fn new(form: Form) -> Self {
        let mut bytes = Vec::new();
        let (live, phases) = match form {
            Form::Text(options) => (Some(Live::new(options)), Phases::Together),
            Form::Json { phases, meta } => {
                meta_line(&meta, &mut bytes);
                (None, phases)
            }
        };
        bytes.extend(live.as_ref().map(Live::header).unwrap_or_default().into_bytes());
        Self { live, lines: Lines::new(phases), line: String::new(), bytes, calls: 0, events: 0, returned: 0 }
    }

    fn event(&mut self, event: &Event) {
        match &mut self.live {
            Some(live) => {
                self.line.clear();
                live.event(event, &mut self.line);
                self.bytes.extend_from_slice(self.line.as_bytes());
            }
            None => self.lines.event(event, &mut self.bytes),
        }
        self.calls += u64::from(matches!(event, Event::Call(_)));
        self.events += 1;
        self.returned += u64::from(matches!(event, Event::Call(call) if call.outcome != Outcome::Begun));
    }

    /// The last line of a JSON trace.
    fn end(&mut self, end: End) {
        if self.live.is_none() {
            end_line(&End { events: self.events, calls: self.returned, ..end }, &mut self.bytes);
        }
    }

    fn write_out(&mut self, shared: &Shared) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(&self.bytes)?;
        out.flush()?;
        self.bytes.clear();
        shared.printed.fetch_add(std::mem::take(&mut self.calls), Ordering::Relaxed);
        shared.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::trace::{Line, Reader};

    use super::*;

    /// A call from a trace.
    fn call() -> Event {
        const TRACE: &str = concat!(
            "{\"type\":\"meta\",\"format\":1}\n",
            "{\"event_id\":1,\"ts\":0.5,\"type\":\"memory\",\"name\":\"cudaFree\",\"phase\":\"X\",\"pid\":1,\"tid\":1,",
            "\"process\":\"p\",\"duration_us\":1.0,\"api\":\"runtime\",\"ret\":0}\n",
        );
        match Reader::new(TRACE.as_bytes()).unwrap().read().unwrap() {
            Some(Line::Event(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn events_that_do_not_fit_are_counted() {
        let (queue, items) = channel();
        let thread = std::thread::spawn(|| Ok(()));
        let mut printer = Printer { queue, thread, shared: Arc::default(), sent: 0, dropped: 0 };
        printer.shared.waiting.store(MOST_WAITING - 4, Ordering::Relaxed);
        for dropped in [0, 2, 5] {
            printer.events(vec![call(); 3]);
            assert_eq!(printer.dropped, dropped);
        }
        let waiting: Vec<_> = items.try_iter().collect();
        assert!(matches!(&waiting[..], [Item::Events(a), Item::Events(b)] if a.len() == 3 && b.len() == 1));
        assert_eq!(printer.sent, 4);
    }

    #[test]
    fn a_json_trace_has_a_first_and_a_last_line() {
        let mut page = Page::new(Form::Json { phases: Phases::Together, meta: Box::default() });
        page.event(&call());
        page.end(End { seconds: 1.0, ..End::default() });
        let mut reader = Reader::new(&*page.bytes).unwrap();
        assert!(matches!(reader.read().unwrap(), Some(Line::Event(Event::Call(_)))));
        let Some(Line::End(end)) = reader.read().unwrap() else { panic!("no end") };
        assert_eq!((end.events, end.calls), (1, 1));
    }
}
