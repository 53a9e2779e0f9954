//! A thread that turns items into results, in their order, with a bounded number of items on the way.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

#[derive(Debug)]
pub(super) struct Worker<I, O, S> {
    items: SyncSender<I>,
    results: Receiver<O>,
    /// Items whose results were not taken yet, and how many there may be.
    on_the_way: usize,
    most: usize,
    thread: JoinHandle<S>,
}

impl<I: Send + 'static, O: Send + 'static, S: Send + 'static> Worker<I, O, S> {
    /// Starts a thread that calls `work` with its state for each item.
    pub(super) fn start(name: &str, most: usize, state: S, work: fn(&mut S, I) -> O) -> io::Result<Self> {
        let (items, to_do) = sync_channel(most);
        let (done, results) = sync_channel(most);
        let run = move || {
            let mut state = state;
            for item in to_do {
                // if the results are not taken, the output failed
                if done.send(work(&mut state, item)).is_err() {
                    break;
                }
            }
            state
        };
        let thread = Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { items, results, on_the_way: 0, most, thread })
    }

    /// Waits for the oldest result if no further item may be on the way. The next call of [`Self::pass`] does not wait.
    pub(super) fn make_room(&mut self) -> io::Result<Option<O>> {
        if self.on_the_way < self.most { Ok(None) } else { self.next() }
    }

    pub(super) fn pass(&mut self, item: I) -> io::Result<()> {
        self.on_the_way += 1;
        self.items.send(item).ok().ok_or_else(ended)
    }

    /// The oldest result; `None` if no item is on the way.
    pub(super) fn next(&mut self) -> io::Result<Option<O>> {
        if self.on_the_way == 0 {
            return Ok(None);
        }
        self.on_the_way -= 1;
        self.results.recv().map(Some).ok().ok_or_else(ended)
    }

    /// Ends the thread, after all results were taken.
    pub(super) fn end(self) -> io::Result<S> {
        drop(self.items);
        self.thread.join().ok().ok_or_else(ended)
    }
}

fn ended() -> io::Error {
    io::Error::other("a thread of the conversion has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_items_are_bounded() {
        let add = |sum: &mut u32, n: u32| {
            *sum += n;
            *sum
        };
        let mut worker = Worker::start("adder", 2, 0, add).unwrap();
        let mut results = Vec::new();
        for n in 1..=10 {
            results.extend(worker.make_room().unwrap());
            worker.pass(n).unwrap();
            assert!(worker.on_the_way <= 2);
        }
        while let Some(sum) = worker.next().unwrap() {
            results.push(sum);
        }
        assert_eq!(results, [1, 3, 6, 10, 15, 21, 28, 36, 45, 55]);
        assert_eq!(worker.end().unwrap(), 55);
    }

    #[test]
    fn a_thread_that_fails_is_an_error() {
        let mut worker =
            Worker::start("divider", 1, (), |(), n: u32| 10_u32.checked_div(n).unwrap()).unwrap();
        worker.pass(0).unwrap();
        assert!(worker.next().is_err());
        assert!(worker.end().is_err());
    }
}
