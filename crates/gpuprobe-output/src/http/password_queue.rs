//! A fair queue for comparing passwords. A comparison takes 50 ms or more, one runs at a time, and any client can
//! request one. So requests are ordered by client address: clients with fewer failures come first, and clients with
//! equally many take turns, however many requests each of them sends.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Requests that may wait for their turn.
pub(super) const MOST_WAITING: usize = 64;
/// Clients whose failures are remembered. The oldest entry is dropped when there are more.
const MOST_CLIENTS: usize = 4096;
/// How long failures are remembered after the last one.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The address of a client. An IPv6 /64 network counts as one client, because a host usually controls all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client(IpAddr);

impl From<IpAddr> for Client {
    fn from(address: IpAddr) -> Self {
        const NETWORK: u128 = !0 << 64;
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address => address,
        })
    }
}

/// The queue of all clients.
#[derive(Clone, Debug, Default)]
pub(super) struct PasswordQueue(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// In order of arrival.
    waiting: Vec<Waiting>,
    /// A comparison is running.
    is_taken: bool,
    /// The round of the last turn.
    round: u64,
    failures: HashMap<Client, Failures>,
}

#[derive(Debug)]
struct Waiting {
    client: Client,
    /// A client has one turn in each round.
    round: u64,
    turn: oneshot::Sender<Turn>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

/// Permission to compare one password. Dropping it passes it on.
#[derive(Debug)]
pub(super) struct Turn {
    queue: PasswordQueue,
    client: Client,
}

impl PasswordQueue {
    /// Waits for a turn. `None` if the queue was full and this request was dropped.
    pub(super) async fn turn(&self, client: Client) -> Option<Turn> {
        let (turn, received) = oneshot::channel();
        self.lock().join(client, turn);
        self.give();
        received.await.ok()
    }

    /// Hands the turn to the next request, unless a comparison is running.
    fn give(&self) {
        let mut state = self.lock();
        if state.is_taken {
            return;
        }
        let Some(Waiting { client, turn, .. }) = state.next() else { return };
        state.is_taken = true;
        drop(state);
        // if the client has disconnected, the turn is dropped here, which passes it on
        drop(turn.send(Turn { queue: self.clone(), client }));
    }

    #[cfg(test)]
    pub(super) fn has_failed(&self, client: Client) -> bool {
        self.lock().failures(client) > 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn join(&mut self, client: Client, turn: oneshot::Sender<Turn>) {
        // clients that have disconnected
        self.waiting.retain(|waiting| !waiting.turn.is_closed());
        let of_client = self.waiting.iter().filter(|waiting| waiting.client == client);
        let last = of_client.map(|waiting| waiting.round).max();
        let round = last.unwrap_or(0).max(self.round) + 1;
        self.waiting.push(Waiting { client, round, turn });
        if self.waiting.len() > MOST_WAITING {
            self.drop_one();
        }
    }

    /// Drops a random request of the clients that come last. If it were always the newest, a right password would never
    /// get in during a flood from the same address.
    fn drop_one(&mut self) {
        let last = self.waiting.iter().map(|waiting| self.rank(waiting)).max();
        let of_last = |waiting: &&Waiting| Some(self.rank(waiting)) == last;
        let clients: HashSet<_> = self.waiting.iter().filter(of_last).map(|waiting| waiting.client).collect();
        let theirs = |at: &usize| self.waiting.get(*at).is_some_and(|w| clients.contains(&w.client));
        let theirs: Vec<_> = (0..self.waiting.len()).filter(theirs).collect();
        let random = RandomState::new().build_hasher().finish() % theirs.len().max(1) as u64;
        if let Some(at) = usize::try_from(random).ok().and_then(|at| theirs.get(at)) {
            self.waiting.remove(*at);
        }
    }

    fn next(&mut self) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.turn.is_closed());
        // the oldest of equals
        let first = (0..self.waiting.len()).min_by_key(|at| self.waiting.get(*at).map(|w| self.rank(w)))?;
        let next = self.waiting.remove(first);
        self.round = self.round.max(next.round.saturating_sub(1));
        Some(next)
    }

    /// The request with the lowest rank comes first.
    fn rank(&self, waiting: &Waiting) -> (u32, u64) {
        (self.failures(waiting.client), waiting.round)
    }

    fn failures(&self, client: Client) -> u32 {
        let known = self.failures.get(&client).filter(|failures| failures.last.elapsed() < REMEMBERED);
        known.map_or(0, |failures| failures.count)
    }

    fn failed(&mut self, client: Client) {
        let count = self.failures(client).saturating_add(1);
        self.failures.insert(client, Failures { count, last: Instant::now() });
        if self.failures.len() > MOST_CLIENTS {
            let oldest =
                self.failures.iter().min_by_key(|(_, failures)| failures.last).map(|(client, _)| *client);
            oldest.map(|oldest| self.failures.remove(&oldest));
        }
    }
}

impl Turn {
    /// The password was wrong.
    pub(super) fn failed(&self) {
        self.queue.lock().failed(self.client);
    }

    /// The password was right.
    pub(super) fn succeeded(&self) {
        self.queue.lock().failures.remove(&self.client);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.queue.lock().is_taken = false;
        self.queue.give();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> Client {
        IpAddr::from([10, 0, 0, last]).into()
    }

    /// Puts requests of these clients into the queue. Each receives its turn through its receiver.
    fn join(queue: &PasswordQueue, clients: &[u8]) -> Vec<oneshot::Receiver<Turn>> {
        let join_one = |last: &u8| {
            let (turn, received) = oneshot::channel();
            queue.lock().join(client(*last), turn);
            received
        };
        clients.iter().map(join_one).collect()
    }

    fn order(queue: &PasswordQueue) -> Vec<Client> {
        std::iter::from_fn(|| queue.lock().next().map(|next| next.client)).collect()
    }

    #[test]
    fn clients_take_turns_however_many_requests_they_send() {
        let queue = PasswordQueue::default();
        let _waiting = join(&queue, &[1, 1, 1, 1, 2, 3, 2]);
        assert_eq!(order(&queue), [1, 2, 3, 1, 2, 1, 1].map(client));
    }

    #[test]
    fn clients_with_failures_come_after_clients_without() {
        let queue = PasswordQueue::default();
        queue.lock().failed(client(1));
        queue.lock().failed(client(1));
        queue.lock().failed(client(2));
        let _waiting = join(&queue, &[1, 1, 2, 3]);
        assert_eq!(order(&queue), [3, 2, 1, 1].map(client));
        queue.lock().failures.get_mut(&client(1)).unwrap().last =
            Instant::now().checked_sub(REMEMBERED).unwrap();
        let _waiting = join(&queue, &[2, 1]);
        assert_eq!(order(&queue), [1, 2].map(client), "failures are forgotten after a while");
    }

    #[test]
    fn a_full_queue_drops_requests_of_the_client_with_most_failures_or_requests() {
        let queue = PasswordQueue::default();
        let mut flood = join(&queue, &[1; 2 * MOST_WAITING]);
        let mut one = join(&queue, &[2]);
        assert_eq!(queue.lock().waiting.len(), MOST_WAITING);
        assert!(one[0].try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty), "it still waits");
        let dropped = flood.iter_mut().filter_map(|received| received.try_recv().err());
        assert_eq!(dropped.filter(|e| *e == oneshot::error::TryRecvError::Closed).count(), MOST_WAITING + 1);
        // at most one request of the flood is before it: the first, if it was not dropped
        assert!(order(&queue)[..2].contains(&client(2)));
        // more clients than fit, all of which have failed before
        (10..100).for_each(|last| queue.lock().failed(client(last)));
        let _flood = join(&queue, &(10..100).collect::<Vec<_>>());
        let _one = join(&queue, &[2]);
        assert_eq!(order(&queue).first(), Some(&client(2)));
    }

    #[test]
    fn there_is_one_turn_at_a_time_and_disconnected_clients_are_skipped() {
        let queue = PasswordQueue::default();
        let mut waiting = join(&queue, &[1, 2, 3]);
        queue.give();
        let first = waiting[0].try_recv().unwrap();
        assert!(waiting[1].try_recv().is_err());
        waiting.remove(1);
        drop(first);
        assert_eq!(waiting[1].try_recv().unwrap().client, client(3));
        assert!(queue.lock().waiting.is_empty() && !queue.lock().is_taken);
    }

    #[test]
    fn remembered_failures_are_bounded() {
        let queue = PasswordQueue::default();
        for address in 0..MOST_CLIENTS as u32 + 100 {
            queue.lock().failed(IpAddr::from(address.to_be_bytes()).into());
        }
        assert_eq!(queue.lock().failures.len(), MOST_CLIENTS);
        assert_eq!(queue.lock().failures(IpAddr::from([0, 0, 0, 0]).into()), 0, "the oldest is forgotten");
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        let of = |text: &str| Client::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), client(1));
        assert_ne!(of("::ffff:10.0.0.1"), client(2));
    }
}
