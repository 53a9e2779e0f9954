//! Which pod of Kubernetes a container is of, as the kubelet of this host tells: it keeps a link to the log of each
//! container, called `POD_NAMESPACE_CONTAINER-ID.log`.

use std::fs;
use std::path::Path;

use gpuprobe_event::Pod;

/// Where the kubelet keeps these links.
pub const CONTAINER_LOGS: &str = "/var/log/containers";
/// More than a host can run; a folder of something else may have any number.
const MOST_LINKS: usize = 1 << 14;

/// The pod of the container with this id; `None` where Kubernetes does not run it.
pub fn pod_of(logs: &Path, id: &str) -> Option<Pod> {
    let end = format!("-{id}.log");
    let names = fs::read_dir(logs)
        .ok()?
        .take(MOST_LINKS)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.into_iter().find_map(|name| parse(name.strip_suffix(&end)?))
}

/// None of the three may have an underscore in it, so that they can be told apart.
fn parse(text: &str) -> Option<Pod> {
    let mut parts = text.split('_').map(str::to_owned).filter(|part| !part.is_empty());
    let (name, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(Pod { namespace, name, container })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_found_by_its_id_and_named_by_the_link_to_its_log() {
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
