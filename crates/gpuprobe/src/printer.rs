//! Prints events on a thread of its own, so that a slow reader of our output holds up nothing but the output: what
//! does not fit into the queue is counted, never waited for.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use gpuprobe_event::Event;
use gpuprobe_event::trace::{Phases, event_line};
use gpuprobe_output::{Live, LiveOptions};

/// Batches that may wait. One has at most some 65,000 events; most have a few.
const MOST_WAITING: usize = 64;
/// Text that is handed to the system at once.
const CHUNK: usize = 1 << 16;

/// What is printed.
pub(crate) enum Form {
    /// For people.
    Text(LiveOptions),
    /// Lines of a trace file.
    Json(Phases),
}

enum Item {
    Events(Vec<Event>),
    Text(String),
}

#[derive(Debug, Default)]
struct Shared {
    printed: AtomicU64,
    closed: AtomicBool,
}

/// The thread that prints, and the queue to it.
#[derive(Debug)]
pub(crate) struct Printer {
    queue: Option<SyncSender<Item>>,
    thread: Option<JoinHandle<io::Result<()>>>,
    shared: Arc<Shared>,
    dropped: u64,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Events(events) => write!(f, "{} events", events.len()),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl Printer {
    /// Begins to print to stdout.
    pub(crate) fn start(form: Form) -> Result<Self> {
        let (queue, items) = sync_channel(MOST_WAITING);
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name("printer".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || print(form, &items, &shared)
            })
            .context("cannot start the thread that prints")?;
        Ok(Self { queue: Some(queue), thread: Some(thread), shared, dropped: 0 })
    }

    /// Prints events, or counts their calls where there is no room for them.
    pub(crate) fn events(&mut self, events: Vec<Event>) {
        let calls = count_calls(&events);
        if !events.is_empty() && !self.send(Item::Events(events)) {
            self.dropped += calls;
        }
    }

    /// Prints text among the lines.
    pub(crate) fn text(&mut self, text: String) {
        self.send(Item::Text(text));
    }

    fn send(&self, item: Item) -> bool {
        let Some(queue) = &self.queue else { return false };
        match queue.try_send(item) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// Whether nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    /// Prints what is left. Returns how many calls were printed, and how many not.
    pub(crate) fn finish(mut self) -> Result<(u64, u64)> {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            match thread.join() {
                Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(error).context("cannot write the output");
                }
                _ => {}
            }
        }
        Ok((self.shared.printed.load(Ordering::Relaxed), self.dropped))
    }
}

/// Lines for calls: one each, or two where beginnings are told too.
fn count_calls(events: &[Event]) -> u64 {
    events.iter().filter(|event| matches!(event, Event::Call(_))).count() as u64
}

fn print(form: Form, items: &Receiver<Item>, shared: &Shared) -> io::Result<()> {
    let mut page = Page::new(form);
    let printed = print_items(&mut page, items, shared);
    shared.closed.store(printed.is_err(), Ordering::Relaxed);
    printed
}

fn print_items(page: &mut Page, items: &Receiver<Item>, shared: &Shared) -> io::Result<()> {
    page.hand_over(shared)?;
    while let Ok(item) = items.recv() {
        match item {
            Item::Text(text) => page.text.push_str(&text),
            Item::Events(events) => {
                for event in &events {
                    page.event(event);
                    if page.text.len() + page.json.len() >= CHUNK {
                        page.hand_over(shared)?;
                    }
                }
            }
        }
        page.hand_over(shared)?;
    }
    Ok(())
}

/// Lines that wait to be handed to the system.
struct Page {
    live: Option<Live>,
    phases: Phases,
    text: String,
    json: Vec<u8>,
    calls: u64,
}

impl Page {
    fn new(form: Form) -> Self {
        let (live, phases) = match form {
            Form::Text(options) => (Some(Live::new(options)), Phases::Together),
            Form::Json(phases) => (None, phases),
        };
        let text = live.as_ref().map(Live::header).unwrap_or_default();
        Self { live, phases, text, json: Vec::new(), calls: 0 }
    }

    fn event(&mut self, event: &Event) {
        match &mut self.live {
            Some(live) => live.event(event, &mut self.text),
            None => event_line(event, self.phases, &mut self.json),
        }
        self.calls += u64::from(matches!(event, Event::Call(_)));
    }

    fn hand_over(&mut self, shared: &Shared) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.text.as_bytes())?;
        out.write_all(&self.json)?;
        out.flush()?;
        self.text.clear();
        self.json.clear();
        shared.printed.fetch_add(std::mem::take(&mut self.calls), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::trace::{Line, Reader};

    use super::*;

    /// A call, out of a trace.
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
    fn what_does_not_fit_is_counted_and_nobody_waits() {
        let (queue, items) = sync_channel(1);
        let mut printer = Printer { queue: Some(queue), thread: None, shared: Arc::default(), dropped: 0 };
        let batch = || vec![call(); 3];
        for _ in 0..3 {
            printer.events(batch());
        }
        assert_eq!(printer.dropped, 6);
        drop(items);
        printer.events(batch());
        assert_eq!(printer.dropped, 9, "nobody prints any more");
    }
}
