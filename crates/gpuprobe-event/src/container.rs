//! The container of a process.

use serde::Serialize;

/// The container that a process is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Container {
    /// The id that the container engine gave it.
    pub id: String,
    /// Its Kubernetes pod, if any.
    pub pod: Option<Pod>,
}

/// A container of a Kubernetes pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    /// The name of the container in it.
    pub container: String,
}

impl Container {
    /// For people: the names if it is in a pod, else the beginning of the id.
    pub fn shown(&self) -> String {
        match &self.pod {
            Some(Pod { namespace, name, container }) => format!("{namespace}/{name}/{container}"),
            None => self.id.chars().take(12).collect(),
        }
    }
}
