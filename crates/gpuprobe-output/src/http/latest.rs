//! The last snapshot, and the texts that are made of it: each at most once, whoever asks for it and however many do.

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

/// The last snapshot, shared between who makes them and who serves them.
#[derive(Clone, Debug, Default)]
pub struct Latest(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    newest: watch::Sender<Option<Arc<Published>>>,
    published: AtomicU64,
    counts: Counts,
}

/// Which text an answer is. Older ones are less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TextId {
    /// The number of the snapshot.
    snapshot: u64,
    page: usize,
    pub(super) bytes: usize,
}

impl Latest {
    /// Replaces the snapshot; the next is to be expected after this time. What the endpoint has counted so far becomes
    /// part of it.
    pub fn publish(&self, mut snapshot: Snapshot, refresh: Duration) {
        snapshot.served = self.0.counts.read();
        let number = self.0.published.fetch_add(1, Ordering::Relaxed);
        self.0.newest.send_replace(Some(Arc::new(Published::new(number, snapshot, refresh))));
    }

    /// The snapshot published last; an empty one before the first.
    pub fn get(&self) -> Arc<Snapshot> {
        let newest = self.0.newest.borrow();
        newest.as_ref().map(|published| Arc::clone(&published.snapshot)).unwrap_or_default()
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.0.counts
    }
}

/// What is made of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Metrics(Format),
    Json,
}

/// How a text is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Plain,
    Gzip,
}

/// A text in one of its forms.
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
        /// The time is in the snapshot as a number too; this is for people.
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
                // there is nothing in a snapshot that JSON has no form for
                serde_json::to_vec(&made).unwrap_or_default().into()
            }
        }
    }
}

/// Longer texts are handed over as they are: to pack them for every snapshot would cost more of a CPU than all else here.
const MOST_PACKED_BYTES: usize = 4 << 20;

fn gzip(text: &[u8]) -> Bytes {
    // names and labels come again and again: more effort makes it hardly smaller
    let mut packed = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    // writing to memory does not fail
    packed.write_all(text).and_then(|()| packed.finish()).unwrap_or_default().into()
}

/// A snapshot that is served.
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

    /// How old it may become until somebody should worry: three others should have come, or `least` should have passed.
    pub(super) fn fresh_for(&self, least: Duration) -> Duration {
        self.refresh.saturating_mul(3).max(least)
    }

    /// The page, and how long it took where it was made just now. That is done by another thread: meanwhile others are
    /// answered.
    ///
    /// Who asked may go away before it is made. It is made all the same, so that the next one does not begin anew.
    async fn page(self: &Arc<Self>, page: Page) -> Option<Made> {
        let this = Arc::clone(self);
        // it fails where the runtime ends, and nobody is answered any more
        tokio::spawn(async move { this.made(page).await }).await.ok()
    }

    async fn made(&self, page: Page) -> Made {
        let (snapshot, plain) = (Arc::clone(&self.snapshot), Page { coding: Coding::Plain, ..page });
        let (text, took) = self.kept(plain, move || page.text.make(&snapshot)).await;
        if page.coding == Coding::Plain || text.len() > MOST_PACKED_BYTES {
            return Made { page: plain, text, took };
        }
        let (text, packing) = self.kept(page, move || gzip(&text)).await;
        Made { page, text, took: packing.map(|packing| packing + took.unwrap_or_default()) }
    }

    async fn kept(
        &self,
        page: Page,
        make: impl FnOnce() -> Bytes + Send + 'static,
    ) -> (Bytes, Option<Duration>) {
        let mut took = None;
        let made = self.pages[page.index()].get_or_init(|| async {
            let made = spawn_blocking(move || {
                let begun = Instant::now();
                (make(), begun.elapsed())
            });
            // it fails where the runtime ends, and nobody is answered any more
            let (text, time) = made.await.unwrap_or_default();
            took = Some(time);
            text
        });
        (made.await.clone(), took)
    }
}

/// A page that is there.
#[derive(Debug)]
struct Made {
    page: Page,
    text: Bytes,
    took: Option<Duration>,
}

/// What is handed over.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) text: Bytes,
    pub(super) id: TextId,
    pub(super) coding: Coding,
}

/// When a page was asked for last, and how long it took to make it.
#[derive(Clone, Copy, Debug)]
struct Demand {
    asked: Instant,
    took: Duration,
}

/// What is served: the last snapshot of which everything is there that takes long to make and that somebody asks for. So
/// who asks for it never waits for that, however large it is.
#[derive(Debug)]
pub(super) struct Serving {
    latest: Latest,
    ready: watch::Sender<Option<Arc<Published>>>,
    demands: Mutex<[Option<Demand>; Page::COUNT]>,
}

/// Pages are made ahead for so long after somebody asked for them. Prometheus asks once a minute, if not told otherwise.
const WANTED_FOR: Duration = Duration::from_secs(150);
/// What is quicker than this is made when it is asked for: most snapshots are replaced before anybody sees them.
const QUICK: Duration = Duration::from_millis(1);

impl Serving {
    pub(super) fn new(latest: Latest) -> Self {
        Self { latest, ready: watch::Sender::new(None), demands: Mutex::default() }
    }

    pub(super) fn counts(&self) -> &Counts {
        self.latest.counts()
    }

    /// The snapshot that is served; `None` before the first.
    pub(super) fn ready(&self) -> Option<Arc<Published>> {
        // nothing was asked for yet of the first, so there is nothing to wait for
        self.ready.borrow().clone().or_else(|| self.latest.0.newest.borrow().clone())
    }

    /// A page of the snapshot that is served, in the form asked for or plain.
    pub(super) async fn page(&self, page: Page) -> Option<Answer> {
        let published = self.ready()?;
        let Made { page: made, text, took } = published.page(page).await?;
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        let demand = &mut demands[page.index()];
        let before = demand.map(|demand| demand.took).unwrap_or_default();
        *demand = Some(Demand { asked: Instant::now(), took: took.unwrap_or(before) });
        let id = TextId { snapshot: published.number, page: made.index(), bytes: text.len() };
        Some(Answer { text, id, coding: made.coding })
    }

    fn is_made_ahead(&self, page: Page) -> bool {
        let demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        demands[page.index()].is_some_and(|d| d.took > QUICK && d.asked.elapsed() < WANTED_FOR)
    }

    /// Takes up every snapshot as soon as it can be served.
    pub(super) async fn follow(&self) {
        let mut news = self.latest.0.newest.subscribe();
        // one may have come before this was called
        news.mark_changed();
        while news.changed().await.is_ok() {
            let Some(newest) = news.borrow_and_update().clone() else { continue };
            for page in Page::all() {
                if self.is_made_ahead(page) {
                    newest.page(page).await;
                }
            }
            self.ready.send_replace(Some(newest));
        }
    }
}
