//! The last snapshot, and the texts made from it. Each text is made at most once, however many clients request it.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpuprobe_analysis::Snapshot;
use gpuprobe_analysis::view::History;
use serde::Serialize;
use tokio::sync::{OnceCell, watch};
use tokio::task::spawn_blocking;

use super::counts::Counts;
use super::page_views;
use crate::metrics::{Format, SeriesLedger, SeriesPlan, SeriesSettings, encode_with};
use crate::timestamp::timestamp;

/// The last snapshot, shared between the daemon that publishes snapshots and the server.
#[derive(Clone, Debug, Default)]
pub struct Latest(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    newest: watch::Sender<Option<Arc<Published>>>,
    published: AtomicU64,
    counts: Counts,
    history: Arc<Mutex<History>>,
    series: Mutex<SeriesLedger>,
    /// The number of snapshots up to the newest one whose metrics were served.
    scraped: AtomicU64,
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
    /// Without a snapshot. Processes will have so many series.
    pub fn with_series(settings: SeriesSettings) -> Self {
        let latest = Self::default();
        latest.set_series(settings);
        latest
    }

    /// Sets how many series processes have.
    pub fn set_series(&self, settings: SeriesSettings) {
        self.0.series.lock().unwrap_or_else(PoisonError::into_inner).set(settings);
    }

    /// Replaces the snapshot and adds the counters of the endpoint to it. The next snapshot is expected after
    /// `refresh`.
    pub fn publish(&self, mut snapshot: Snapshot, refresh: Duration) {
        snapshot.served = self.0.counts.read();
        let number = self.0.published.fetch_add(1, Ordering::Relaxed);
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner).take(&snapshot);
        let before = self.0.newest.borrow().as_ref().map(|before| Arc::clone(&before.source.snapshot));
        let scraped = self.0.scraped.load(Ordering::Relaxed).checked_sub(1);
        let mut series = self.0.series.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = Arc::new(series.take(&snapshot, number, scraped));
        drop(series);
        let history = Arc::clone(&self.0.history);
        let source = TextSource { snapshot: Arc::new(snapshot), before, history, plan };
        self.0.newest.send_replace(Some(Arc::new(Published::new(number, source, refresh))));
    }

    /// The snapshot published last; an empty one if there is none yet.
    pub fn get(&self) -> Arc<Snapshot> {
        let newest = self.0.newest.borrow();
        newest.as_ref().map(|published| Arc::clone(&published.source.snapshot)).unwrap_or_default()
    }

    /// The snapshot published last with the series of its processes, which count as scraped, because the caller pushes
    /// them. `None` if there is none yet.
    pub(crate) fn to_push(&self) -> Option<(Arc<Snapshot>, Arc<SeriesPlan>)> {
        let published = self.0.newest.borrow().clone()?;
        self.note_scrape(published.number);
        Some((Arc::clone(&published.source.snapshot), Arc::clone(&published.source.plan)))
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    fn note_scrape(&self, snapshot: u64) {
        self.0.scraped.fetch_max(snapshot + 1, Ordering::Relaxed);
    }
}

/// A text made from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Metrics(Format),
    Json,
    /// What the page shows.
    View,
}

/// What texts are made from.
#[derive(Clone, Debug)]
pub(super) struct TextSource {
    pub(super) snapshot: Arc<Snapshot>,
    /// The snapshot before this one, for rates.
    pub(super) before: Option<Arc<Snapshot>>,
    pub(super) history: Arc<Mutex<History>>,
    /// The series of its processes.
    pub(super) plan: Arc<SeriesPlan>,
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
    const COUNT: usize = 8;

    fn index(self) -> usize {
        let text = match self.text {
            Text::Metrics(Format::Prometheus) => 0,
            Text::Metrics(Format::OpenMetrics) => 1,
            Text::Json => 2,
            Text::View => 3,
        };
        text * 2 + usize::from(self.coding == Coding::Gzip)
    }

    fn all() -> impl Iterator<Item = Self> {
        let metrics = [Format::Prometheus, Format::OpenMetrics].map(Text::Metrics);
        let texts = metrics.into_iter().chain([Text::Json, Text::View]);
        texts.flat_map(|text| [Coding::Plain, Coding::Gzip].map(|coding| Self { text, coding }))
    }
}

impl Text {
    fn make(self, source: &TextSource) -> Bytes {
        let snapshot = &*source.snapshot;
        /// `time` repeats the time of the snapshot in a readable form.
        #[derive(Serialize)]
        struct Made<'a> {
            version: &'static str,
            time: String,
            snapshot: &'a Snapshot,
        }
        match self {
            Self::Metrics(format) => encode_with(snapshot, &source.plan, format).into(),
            Self::Json => {
                let time = format!("{}Z", timestamp(snapshot.unix_seconds, 0).replace(' ', "T"));
                let made = Made { version: env!("CARGO_PKG_VERSION"), time, snapshot };
                // every value of a snapshot can be written as JSON
                serde_json::to_vec(&made).unwrap_or_default().into()
            }
            Self::View => page_views::view_json(source).into(),
        }
    }
}

/// Longer texts are not compressed: that would cost more CPU for every snapshot than everything else here.
const MOST_GZIP_BYTES: usize = 4 << 20;

pub(crate) fn gzip(text: &[u8]) -> Bytes {
    // names and labels repeat a lot, so a higher level makes the result hardly smaller
    let mut compressed = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    // writing to memory cannot fail
    compressed.write_all(text).and_then(|()| compressed.finish()).unwrap_or_default().into()
}

/// A snapshot with the texts made from it so far.
#[derive(Debug)]
pub(super) struct Published {
    number: u64,
    source: TextSource,
    at: Instant,
    refresh: Duration,
    pages: [OnceCell<Bytes>; Page::COUNT],
}

impl Published {
    fn new(number: u64, source: TextSource, refresh: Duration) -> Self {
        let pages = std::array::from_fn(|_| OnceCell::new());
        Self { number, source, at: Instant::now(), refresh, pages }
    }

    pub(super) fn source(&self) -> &TextSource {
        &self.source
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
        let (source, plain) = (self.source.clone(), Page { coding: Coding::Plain, ..page });
        let (text, took) = self.cached(plain, move || page.text.make(&source)).await;
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
        if matches!(page.text, Text::Metrics(_)) {
            self.latest.note_scrape(published.number);
        }
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
