//! Requests to other servers, over HTTP or HTTPS.

mod daemon_client;
mod server;

pub use daemon_client::DaemonClient;
pub(crate) use daemon_client::refuse_password;
pub use server::ClientError;
pub(crate) use server::{Certificates, Server};
