//! The last snapshot, and the texts that are made of it: each at most once, whoever asks for it and however many do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
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
pub(super) enum Page {
    Metrics(Format),
    Json,
}

impl Page {
    const COUNT: usize = 3;

    fn index(self) -> usize {
        match self {
            Self::Metrics(Format::Prometheus) => 0,
            Self::Metrics(Format::OpenMetrics) => 1,
            Self::Json => 2,
        }
    }

    const ALL: [Self; Self::COUNT] =
        [Self::Metrics(Format::Prometheus), Self::Metrics(Format::OpenMetrics), Self::Json];

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
    async fn page(self: &Arc<Self>, page: Page) -> (Bytes, Option<Duration>) {
        let this = Arc::clone(self);
        tokio::spawn(async move { this.made(page).await }).await.unwrap_or_default()
    }

    async fn made(&self, page: Page) -> (Bytes, Option<Duration>) {
        let mut took = None;
        let made = self.pages[page.index()].get_or_init(|| async {
            let snapshot = Arc::clone(&self.snapshot);
            let made = spawn_blocking(move || {
                let begun = Instant::now();
                (page.make(&snapshot), begun.elapsed())
            });
            // it fails where the runtime ends, and nobody is answered any more
            let (text, time) = made.await.unwrap_or_default();
            took = Some(time);
            text
        });
        (made.await.clone(), took)
    }
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

    /// A page of the snapshot that is served.
    pub(super) async fn page(&self, page: Page) -> Option<(Bytes, TextId)> {
        let published = self.ready()?;
        let (text, took) = published.page(page).await;
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        let demand = &mut demands[page.index()];
        let before = demand.map(|demand| demand.took).unwrap_or_default();
        *demand = Some(Demand { asked: Instant::now(), took: took.unwrap_or(before) });
        let id = TextId { snapshot: published.number, page: page.index(), bytes: text.len() };
        Some((text, id))
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
            for page in Page::ALL {
                if self.is_made_ahead(page) {
                    newest.page(page).await;
                }
            }
            self.ready.send_replace(Some(newest));
        }
    }
}
