//! Finds the Kubernetes pod of a container. The kubelet keeps a link to the log of each container of the host, named
//! `POD_NAMESPACE_CONTAINER-ID.log`.

use std::fs;
use std::path::Path;

use gpuprobe_event::Pod;

/// The directory of these links.
pub const CONTAINER_LOGS: &str = "/var/log/containers";
/// More than a host can run; another directory may have any number of files.
const LINK_LIMIT: usize = 1 << 14;

/// The pod of the container with this id; `None` if it is not from Kubernetes.
pub fn pod_of(logs: &Path, id: &str) -> Option<Pod> {
    let end = format!("-{id}.log");
    let names = fs::read_dir(logs)
        .ok()?
        .take(LINK_LIMIT)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.into_iter().find_map(|name| parse(name.strip_suffix(&end)?))
}

/// None of the three parts may contain an underscore, so the split is unambiguous.
fn parse(text: &str) -> Option<Pod> {
    let mut parts = text.split('_').map(str::to_owned).filter(|part| !part.is_empty());
    let (name, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(Pod { namespace, name, container })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_is_parsed_from_the_name_of_the_log_link() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = ("1".repeat(64), "2".repeat(64));
        for name in [
            format!("train-0_research_main-worker-{one}.log"),
            format!("dcgm-x7k2p_monitoring_exporter-{two}.log"),
            format!("broken_{}.log", "3".repeat(64)),
            "notes.txt".to_owned(),
        ] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let pod = pod_of(folder.path(), &one).unwrap();
        assert_eq!((pod.name.as_str(), pod.namespace.as_str()), ("train-0", "research"));
        assert_eq!(pod.container, "main-worker");
        assert_eq!(pod_of(folder.path(), &two).unwrap().container, "exporter");
        assert_eq!(pod_of(folder.path(), &"3".repeat(64)), None);
        assert_eq!(pod_of(folder.path(), "4"), None);
        assert_eq!(pod_of(Path::new("/nowhere"), &one), None);
    }
}
