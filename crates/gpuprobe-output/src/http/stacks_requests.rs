//! Requests for the stacks of threads. They are not part of the snapshot: sampling takes a second and reads the memory of
//! processes, so it happens only when it is asked for, and all clients that wait share one answer.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Clients that may wait at once; further ones get an error.
const WAITING: usize = 32;
/// Shorter than the time in which a request must be answered. Reading the symbols of large libraries for the first time
/// takes longer; then the next request is answered.
const PATIENCE: Duration = Duration::from_secs(8);

/// Where the endpoint asks for stacks.
#[derive(Clone, Debug)]
pub struct StacksSource(mpsc::Sender<oneshot::Sender<Bytes>>);

/// The requests, for the thread that samples.
#[derive(Debug)]
pub struct StacksRequests(mpsc::Receiver<oneshot::Sender<Bytes>>);

/// Clients that wait for the same answer.
#[derive(Debug)]
pub struct WaitingClients(Vec<oneshot::Sender<Bytes>>);

/// Connects the endpoint with a thread that samples.
pub fn stacks_requests() -> (StacksSource, StacksRequests) {
    let (ask, asked) = mpsc::channel(WAITING);
    (StacksSource(ask), StacksRequests(asked))
}

impl StacksRequests {
    /// Waits for requests; `None` when the endpoint is closed.
    pub fn wait(&mut self) -> Option<WaitingClients> {
        let mut waiting = vec![self.0.blocking_recv()?];
        while let Ok(more) = self.0.try_recv() {
            waiting.push(more);
        }
        Some(WaitingClients(waiting))
    }
}

impl WaitingClients {
    /// Sends JSON to all of them. Those that have gone do not matter.
    pub fn answer(self, json: String) {
        let json = Bytes::from(json);
        for client in self.0 {
            client.send(json.clone()).ok();
        }
    }
}

pub(super) async fn answer(source: Option<&StacksSource>) -> Response {
    let Some(StacksSource(ask)) = source else {
        let text = "not found: start the daemon with --stacks to read the stacks of threads here\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    let (client, answered) = oneshot::channel();
    if ask.try_send(client).is_err() {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many clients wait for stacks: try again\n")
            .into_response();
    }
    match timeout(PATIENCE, answered).await {
        Ok(Ok(json)) => ([(CONTENT_TYPE, "application/json")], json).into_response(),
        Ok(Err(_)) => {
            (StatusCode::SERVICE_UNAVAILABLE, "the stacks could not be read: see the log\n").into_response()
        }
        Err(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "the stacks are still being read: try again\n").into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    async fn text(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn clients_that_wait_share_an_answer() {
        let (source, mut requests) = stacks_requests();
        let clients: Vec<_> = (0..WAITING)
            .map(|_| source.clone())
            .map(|source| tokio::spawn(async move { text(answer(Some(&source)).await).await }))
            .collect();
        while source.0.capacity() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(text(answer(Some(&source)).await).await.0, 503, "one more");
        let served = std::thread::spawn(move || {
            requests.wait().unwrap().answer("{}\n".to_owned());
            requests
        });
        for client in clients {
            assert_eq!(client.await.unwrap(), (200, "{}\n".to_owned()));
        }
        drop(served.join());
        assert_eq!(text(answer(Some(&source)).await).await.0, 503, "the thread has ended");
        assert_eq!(text(answer(None).await).await.0, 404);
    }
}
