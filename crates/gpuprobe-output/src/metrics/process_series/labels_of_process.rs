//! The labels that distinguish processes.

use gpuprobe_event::{Container, Tgid};

use super::super::labels::clean;

/// Which processes have common series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregate {
    /// Each process has its own.
    #[default]
    Process,
    /// All processes of one name.
    Name,
    /// All processes of one container.
    Container,
    /// All processes of one Kubernetes pod.
    Pod,
}

impl Aggregate {
    /// All of them, in the order in which help shows them.
    pub const ALL: [Self; 4] = [Self::Process, Self::Name, Self::Container, Self::Pod];

    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Name => "name",
            Self::Container => "container",
            Self::Pod => "pod",
        }
    }
}

/// The values of `pid`, `process`, `container_id`, `container`, `pod` and `namespace`; empty ones are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessLabels(pub(crate) [String; 6]);

impl ProcessLabels {
    pub(crate) fn new(by: Aggregate, pid: Tgid, name: &str, container: Option<&Container>) -> Self {
        // names that are written in the same way are the same
        let name = || clean(name);
        let id = || clean(container.map_or("", |container| &container.id));
        let names = || {
            let pod = container.and_then(|container| container.pod.as_ref());
            pod.map_or_else(Default::default, |pod| {
                [&pod.container, &pod.name, &pod.namespace].map(String::clone)
            })
        };
        let none = String::new;
        Self(match by {
            Aggregate::Process => {
                let [container, pod, namespace] = names();
                [pid.to_string(), name(), id(), container, pod, namespace]
            }
            Aggregate::Name => [none(), name(), none(), none(), none(), none()],
            Aggregate::Container => {
                let [container, pod, namespace] = names();
                [none(), none(), id(), container, pod, namespace]
            }
            Aggregate::Pod => {
                let [_, pod, namespace] = names();
                [none(), none(), none(), none(), pod, namespace]
            }
        })
    }

    /// Those of the sum over all processes of one name without series of their own.
    pub(crate) fn of_name(name: &str) -> Self {
        Self::new(Aggregate::Name, Tgid(0), name, None)
    }
}
