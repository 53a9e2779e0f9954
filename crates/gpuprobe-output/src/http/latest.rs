//! The last snapshot, and the texts made from it. Each text is made at most once, however many clients request it.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpuprobe_analysis::Snapshot;
use serde::Serialize;
use tokio::sync::{OnceCell, watch};
use tokio::task::spawn_blocking;

use super::counts::Counts;
use crate::metrics::{Format, encode};
use crate::timestamp::timestamp;

/// The last snapshot, shared between the daemon that publishes snapshots and the server.
#[derive(Clone, Debug, Default)]
pub struct Latest(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    newest: watch::Sender<Option<Arc<Published>>>,
    published: AtomicU64,
    counts: Counts,
}

/// Identifies a text. Older texts order before newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TextId {
    /// The number of the snapshot.
    snapshot: u64,
    page: usize,
    pub(super) bytes: usize,
}

impl Latest {
    /// Replaces the snapshot and adds the counters of the endpoint to it. The next snapshot is expected after
    /// `refresh`.
    pub fn publish(&self, mut snapshot: Snapshot, refresh: Duration) {
        snapshot.served = self.0.counts.read();
        let number = self.0.published.fetch_add(1, Ordering::Relaxed);
        self.0.newest.send_replace(Some(Arc::new(Published::new(number, snapshot, refresh))));
    }

    /// The snapshot published last; an empty one if there is none yet.
    pub fn get(&self) -> Arc<Snapshot> {
        let newest = self.0.newest.borrow();
        newest.as_ref().map(|published| Arc::clone(&published.snapshot)).unwrap_or_default()
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.0.counts
    }
}

/// A text made from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Metrics(Format),
    Json,
}

/// The content encoding of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Plain,
    Gzip,
}

/// A text in one of its encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) text: Text,
    pub(super) coding: Coding,
}

impl Page {
    const COUNT: usize = 6;

    fn index(self) -> usize {
        let text = match self.text {
            Text::Metrics(Format::Prometheus) => 0,
            Text::Metrics(Format::OpenMetrics) => 1,
            Text::Json => 2,
        };
        text * 2 + usize::from(self.coding == Coding::Gzip)
    }

    fn all() -> impl Iterator<Item = Self> {
        let texts = [Text::Metrics(Format::Prometheus), Text::Metrics(Format::OpenMetrics), Text::Json];
        texts.into_iter().flat_map(|text| [Coding::Plain, Coding::Gzip].map(|coding| Self { text, coding }))
    }
}

impl Text {
    fn make(self, snapshot: &Snapshot) -> Bytes {
        /// `time` repeats the time of the snapshot in a readable form.
        #[derive(Serialize)]
        struct Made<'a> {
            version: &'static str,
            time: String,
            snapshot: &'a Snapshot,
        }
        match self {
            Self::Metrics(format) => encode(snapshot, format).into(),
            Self::Json => {
                let time = format!("{}Z", timestamp(snapshot.unix_seconds, 0).replace(' ', "T"));
                let made = Made { version: env!("CARGO_PKG_VERSION"), time, snapshot };
                // every value of a snapshot can be written as JSON
                serde_json::to_vec(&made).unwrap_or_default().into()
            }
        }
    }
}

/// Longer texts are not compressed: that would cost more CPU for every snapshot than everything else here.
const MOST_GZIP_BYTES: usize = 4 << 20;

fn gzip(text: &[u8]) -> Bytes {
    // names and labels repeat a lot, so a higher level makes the result hardly smaller
    let mut compressed = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    // writing to memory cannot fail
    compressed.write_all(text).and_then(|()| compressed.finish()).unwrap_or_default().into()
}

/// A snapshot with the texts made from it so far.
#[derive(Debug)]
pub(super) struct Published {
    number: u64,
    snapshot: Arc<Snapshot>,
    at: Instant,
    refresh: Duration,
    pages: [OnceCell<Bytes>; Page::COUNT],
}

impl Published {
    fn new(number: u64, snapshot: Snapshot, refresh: Duration) -> Self {
        let pages = std::array::from_fn(|_| OnceCell::new());
        Self { number, snapshot: Arc::new(snapshot), at: Instant::now(), refresh, pages }
    }

    pub(super) fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// How long it counts as fresh: three refresh intervals, and at least `least`.
    pub(super) fn fresh_for(&self, least: Duration) -> Duration {
        self.refresh.saturating_mul(3).max(least)
    }

    /// The page, and how long it took if it was made just now. Another thread makes it, so that other clients are
    /// answered meanwhile.
    ///
    /// If the client disconnects the page is still completed, so that the next request does not start again.
    async fn page(self: &Arc<Self>, page: Page) -> Option<Made> {
        let this = Arc::clone(self);
        // fails only if the runtime is shutting down
        tokio::spawn(async move { this.made(page).await }).await.ok()
    }

    async fn made(&self, page: Page) -> Made {
        let (snapshot, plain) = (Arc::clone(&self.snapshot), Page { coding: Coding::Plain, ..page });
        let (text, took) = self.cached(plain, move || page.text.make(&snapshot)).await;
        if page.coding == Coding::Plain || text.len() > MOST_GZIP_BYTES {
            return Made { page: plain, text, took };
        }
        let (text, compressing) = self.cached(page, move || gzip(&text)).await;
        Made { page, text, took: compressing.map(|compressing| compressing + took.unwrap_or_default()) }
    }

    async fn cached(
        &self,
        page: Page,
        make: impl FnOnce() -> Bytes + Send + 'static,
    ) -> (Bytes, Option<Duration>) {
        let mut took = None;
        let made = self.pages[page.index()].get_or_init(|| async {
            let made = spawn_blocking(move || {
                let start = Instant::now();
                (make(), start.elapsed())
            });
            // fails only if the runtime is shutting down
            let (text, time) = made.await.unwrap_or_default();
            took = Some(time);
            text
        });
        (made.await.clone(), took)
    }
}

/// A page that has been made.
#[derive(Debug)]
struct Made {
    page: Page,
    text: Bytes,
    took: Option<Duration>,
}

/// The content of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) text: Bytes,
    pub(super) id: TextId,
    pub(super) coding: Coding,
}

/// When a page was last requested, and how long it took to make it.
#[derive(Clone, Copy, Debug)]
struct Demand {
    requested: Instant,
    took: Duration,
}

/// The snapshot that is served: the last one for which all pages are made that are in demand and slow to make. So a
/// client never waits for a slow page, however large it is.
#[derive(Debug)]
pub(super) struct Serving {
    latest: Latest,
    ready: watch::Sender<Option<Arc<Published>>>,
    demands: Mutex<[Option<Demand>; Page::COUNT]>,
}

/// Pages are made ahead for this long after the last request. Prometheus scrapes once a minute by default.
const WANTED_FOR: Duration = Duration::from_secs(150);
/// Pages that are quicker to make are made on request: most snapshots are replaced before any client requests them.
const QUICK: Duration = Duration::from_millis(1);

impl Serving {
    pub(super) fn new(latest: Latest) -> Self {
        Self { latest, ready: watch::Sender::new(None), demands: Mutex::default() }
    }

    pub(super) fn counts(&self) -> &Counts {
        self.latest.counts()
    }

    /// The snapshot that is served; `None` if there is none yet.
    pub(super) fn ready(&self) -> Option<Arc<Published>> {
        // no page of the first snapshot is in demand yet, so there is nothing to wait for
        self.ready.borrow().clone().or_else(|| self.latest.0.newest.borrow().clone())
    }

    /// A page of the snapshot that is served, in the requested encoding or plain.
    pub(super) async fn page(&self, page: Page) -> Option<Answer> {
        let published = self.ready()?;
        let Made { page: made, text, took } = published.page(page).await?;
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        let demand = &mut demands[page.index()];
        let before = demand.map(|demand| demand.took).unwrap_or_default();
        *demand = Some(Demand { requested: Instant::now(), took: took.unwrap_or(before) });
        let id = TextId { snapshot: published.number, page: made.index(), bytes: text.len() };
        Some(Answer { text, id, coding: made.coding })
    }

    fn is_made_ahead(&self, page: Page) -> bool {
        let demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        demands[page.index()].is_some_and(|d| d.took > QUICK && d.requested.elapsed() < WANTED_FOR)
    }

    /// Serves every new snapshot as soon as its pages in demand are made.
    pub(super) async fn follow(&self) {
        let mut newest = self.latest.0.newest.subscribe();
        // a snapshot may have been published before this was called
        newest.mark_changed();
        while newest.changed().await.is_ok() {
            let Some(published) = newest.borrow_and_update().clone() else { continue };
            for page in Page::all() {
                if self.is_made_ahead(page) {
                    published.page(page).await;
                }
            }
            self.ready.send_replace(Some(published));
        }
    }
}
