//! Where a process runs, when that is not the host itself.

use serde::Serialize;

/// The container that a process is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Container {
    /// The engine's id of it.
    pub id: String,
    /// The pod it belongs to, where Kubernetes runs it.
    pub pod: Option<Pod>,
}

/// A container of a pod of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub name: String,
    /// The name of the container in it.
    pub container: String,
}

impl Container {
    /// As people call it: by names where it has some, else by the id.
    pub fn shown(&self) -> String {
        match &self.pod {
            Some(Pod { namespace, name, container }) => format!("{namespace}/{name}/{container}"),
            None => self.id.chars().take(12).collect(),
        }
    }
}
