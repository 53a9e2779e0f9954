//! The thread that pushes.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpuprobe_analysis::Pushed;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::baselines::Temporality;
use super::lane::Lane;
use super::message::Resource;
use super::payload::Signal;
use super::points::MetricsWriter;
use super::post::Receiver;
use super::push_counts::{Cause, Counts};
use super::records::{LogEvents, LogsWriter};
use crate::http::Latest;

/// How long the end of gpuprobe waits for the last requests.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// Why nothing can be pushed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The async runtime cannot be created.
    #[error("cannot start the runtime of the OTLP push: {0}")]
    Runtime(#[source] io::Error),
    /// The thread cannot be created.
    #[error("cannot start the thread of the OTLP push: {0}")]
    Thread(#[source] io::Error),
}

/// What is pushed, how often and where to.
#[derive(Debug)]
pub struct PushSettings {
    /// The receiver.
    pub receiver: Receiver,
    /// The attributes of all metrics and logs.
    pub resource: Resource,
    /// The time between two pushes.
    pub interval: Duration,
    /// Whether counters are pushed as totals or differences.
    pub temporality: Temporality,
    /// When gpuprobe started to count.
    pub started: SystemTime,
    /// Called with one line when the receiver begins or ends to take what is pushed.
    pub report: fn(&str),
}

/// Pushes until it is dropped, which waits a little for the last requests.
#[derive(Debug)]
pub struct Push {
    counts: Arc<Counts>,
    events: Arc<LogEvents>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Push {
    /// Starts a thread that pushes the latest snapshot at every interval.
    pub fn start(settings: PushSettings, latest: Latest) -> Result<Self, PushError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(PushError::Runtime)?;
        let (counts, events) = (Arc::<Counts>::default(), Arc::<LogEvents>::default());
        let (stop, stopped) = oneshot::channel();
        let pushing = Pushing::new(settings, latest, Arc::clone(&counts), Arc::clone(&events));
        let push = move || pushing.run(runtime, stopped);
        let thread = std::thread::Builder::new().name("otlp".to_owned()).spawn(push);
        let thread = Some(thread.map_err(PushError::Thread)?);
        Ok(Self { counts, events, stop: Some(stop), thread })
    }

    /// What was pushed so far.
    pub fn counts(&self) -> Pushed {
        self.counts.read()
    }

    /// Takes errors that become log records.
    pub fn events(&self) -> Arc<LogEvents> {
        Arc::clone(&self.events)
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // a panic was reported on stderr
            thread.join().ok();
        }
    }
}

/// The state of the thread.
struct Pushing {
    latest: Latest,
    interval: Duration,
    report: fn(&str),
    counts: Arc<Counts>,
    events: Arc<LogEvents>,
    metrics: MetricsWriter,
    logs: LogsWriter,
    lanes: [Lane; Signal::ALL.len()],
    /// The time of the last snapshot that was pushed.
    pushed: f64,
}

impl Pushing {
    fn new(settings: PushSettings, latest: Latest, counts: Arc<Counts>, events: Arc<LogEvents>) -> Self {
        let PushSettings { receiver, resource, interval, temporality, started, report } = settings;
        let receiver = Arc::new(receiver);
        let start = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let start_ns = u64::try_from(start).unwrap_or(u64::MAX);
        let lanes =
            Signal::ALL.map(|signal| Lane::new(signal, Arc::clone(&receiver), Arc::clone(&counts), report));
        Self {
            latest,
            interval,
            report,
            counts,
            events,
            metrics: MetricsWriter::new(resource.clone(), temporality, start_ns),
            logs: LogsWriter::new(resource),
            lanes,
            pushed: 0.0,
        }
    }

    fn run(self, runtime: Runtime, stopped: oneshot::Receiver<()>) {
        let Self { latest, interval, report, counts, events, mut metrics, mut logs, lanes, mut pushed } =
            self;
        let [of_metrics, of_logs] = &lanes;
        let mut read = || {
            let Some((snapshot, plan)) = latest.to_push() else { return };
            // without a new snapshot there is nothing to push
            if snapshot.unix_seconds == pushed {
                return;
            }
            pushed = snapshot.unix_seconds;
            metrics.write(&snapshot, &plan).into_iter().for_each(|payload| of_metrics.push(payload));
            let (payload, dropped) = logs.write(&snapshot, &events);
            counts.dropped(Signal::Logs, Cause::Burst, dropped);
            payload.into_iter().for_each(|payload| of_logs.push(payload));
        };
        runtime.block_on(async {
            let reading = async {
                let mut ticks = interval_at(Instant::now() + interval, interval);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                tokio::pin!(stopped);
                loop {
                    tokio::select! {
                        _ = ticks.tick() => read(),
                        // an error means that the sender was dropped, which is the signal to stop
                        _ = &mut stopped => break,
                    }
                }
                read();
                lanes.iter().for_each(Lane::close);
                sleep(LAST_REQUESTS).await;
            };
            let sending = async { tokio::join!(of_metrics.run(), of_logs.run()) };
            tokio::select! {
                () = reading => {}
                _ = sending => {}
            }
        });
        // a name that is being resolved must not delay the exit
        runtime.shutdown_background();
        let lost: u64 = lanes.iter().map(Lane::waiting).sum();
        if lost > 0 {
            report(&format!("{lost} data points and log records were not delivered to the OTLP receiver"));
        }
    }
}
