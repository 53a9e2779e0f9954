use std::os::unix::fs::symlink;

use gpuprobe_event::{Gpu, PciAddress};

use std::fs;

use super::*;

/// Four GPUs whose device files are numbered in reverse. The UUIDs begin with 10, 11, 12, 13.
fn host() -> Vec<HostGpu> {
    let gpu = |index: u8| HostGpu {
        index,
        uuid: Some(uuid(index)),
        pci: PciAddress { domain: 0, bus: index + 1, device: 0, function: 0 },
        minor: Some(u32::from(3 - index)),
        is_parted: false,
    };
    (0..4).map(gpu).collect()
}

fn uuid(index: u8) -> Uuid {
    Uuid([0x10 + index; 16])
}

fn view(visible: Option<&str>, by_pci_order: bool) -> View {
    let environment = Environment { visible: visible.map(str::to_owned), by_pci_order };
    View { environment: Some(environment), ..View::default() }
}

/// The host's numbers of the first four GPUs of a process; `None` if the process's own number is kept.
fn seen(view: &View, host: &[HostGpu]) -> [Option<u8>; 4] {
    let numbers = view.numbers(host);
    [0, 1, 2, 3].map(|number| match numbers.of(number) {
        Gpu::Host(index) => Some(index),
        Gpu::OfProcess(same) => {
            assert_eq!(same, number);
            None
        }
    })
}

fn by_list(visible: &str) -> Vec<u8> {
    seen(&view(Some(visible), true), &host()).into_iter().flatten().collect()
}

#[test]
fn a_list_of_numbers_ends_at_an_invalid_entry() {
    for (list, expected) in [
        ("2", &[2][..]),
        ("3,1,0", &[3, 1, 0]),
        (" 1, 2 ,0", &[1, 2, 0]),
        ("1,4,0", &[1]),
        ("1,-1,0", &[1]),
        ("-1,0", &[]),
        ("4", &[]),
        ("", &[]),
        (",1", &[]),
        ("1,", &[1]),
        ("1,1", &[]),
        ("1,0x2", &[1]),
        ("010", &[]),
        ("1;2", &[]),
        ("all", &[]),
        ("99999999999999999999", &[]),
        ("1,GPU-12", &[1]),
    ] {
        assert_eq!(by_list(list), expected, "{list}");
    }
}

#[test]
fn a_list_may_contain_uuids_and_prefixes() {
    let whole = uuid(2).to_string();
    for (list, expected) in [
        (whole.clone(), &[2][..]),
        (whole.to_uppercase(), &[2]),
        ("GPU-13,GPU-10101010-1".to_owned(), &[3, 0]),
        ("GPU-1".to_owned(), &[]),
        ("GPU-".to_owned(), &[]),
        ("gpu-13".to_owned(), &[]),
        (" GPU-13".to_owned(), &[]),
        ("GPU-13,GPU-77,GPU-10".to_owned(), &[3]),
        ("GPU-13,0".to_owned(), &[3]),
        ("GPU-13,GPU-13".to_owned(), &[]),
        ("GPU-é".to_owned(), &[]),
        (format!("MIG-{whole}/7/0"), &[2]),
        (format!("MIG-{whole}/7/0,MIG-{}/1/0", uuid(1)), &[2]),
        ("MIG-9c2a30d4-6b7a-5c0e-8d8b-1d2f3a4b5c6d".to_owned(), &[]),
        ("MIG-".to_owned(), &[]),
    ] {
        assert_eq!(by_list(&list), expected, "{list}");
        // UUIDs do not depend on the order of the GPUs
        let by_speed = seen(&view(Some(&list), false), &host());
        assert_eq!(by_speed.into_iter().flatten().collect::<Vec<_>>(), expected, "{list}");
    }
}

#[test]
fn numbers_are_certain_only_if_the_order_is() {
    let host = host();
    let by_pci_order = [Some(0), Some(1), Some(2), Some(3)];
    assert_eq!(seen(&view(None, true), &host), by_pci_order);
    assert_eq!(seen(&view(None, false), &host), [None; 4], "the fastest is the first");
    assert_eq!(seen(&view(Some("2"), false), &host), [None; 4]);
    assert_eq!(seen(&View::default(), &host), [None; 4], "no environment was read");
    let mut parted = host.clone();
    parted[3].is_parted = true;
    assert_eq!(seen(&view(Some("0"), true), &parted), [None; 4]);
    assert_eq!(seen(&view(Some("GPU-11"), true), &parted), [Some(1), None, None, None]);
}

#[test]
fn a_host_with_one_gpu_is_certain_and_one_without_is_not() {
    let one = &host()[..1];
    assert_eq!(seen(&View::default(), one), [Some(0); 4]);
    assert_eq!(seen(&view(Some("0"), true), &[]), [None; 4]);
}

#[test]
fn a_container_numbers_the_device_files_that_it_has() {
    // device files 1 and 0 belong to the third and the fourth GPU
    let given = |view: View| View { reachable: [0, 1].into(), ..view };
    let host = host();
    assert_eq!(seen(&given(view(None, true)), &host), [Some(2), Some(3), None, None]);
    assert_eq!(seen(&given(view(Some("1"), true)), &host), [Some(3), None, None, None]);
    assert_eq!(seen(&given(view(Some("GPU-10"), true)), &host), [None; 4], "the container does not have it");
    let one = View { reachable: [1].into(), ..view(None, false) };
    assert_eq!(seen(&one, &host), [Some(2), None, None, None]);
}

#[test]
fn reported_identities_override_a_wrong_list() {
    let host = host();
    // a program that chose its GPUs after it had started
    let mut changed = view(Some("0,1"), true);
    assert!(changed.add_identity(0, Identity::Uuid(uuid(3))));
    assert!(!changed.add_identity(0, Identity::Uuid(uuid(3))));
    assert_eq!(seen(&changed, &host), [Some(3), None, None, None]);

    let mut same = view(Some("3,1"), true);
    same.add_identity(0, Identity::Pci(host[3].pci));
    assert_eq!(seen(&same, &host), [Some(3), Some(1), None, None]);
    same.add_identity(2, Identity::Uuid(uuid(0)));
    assert_eq!(seen(&same, &host), [Some(3), None, Some(0), None], "the list would have ended");

    let mut part = View::default();
    part.add_identity(0, Identity::Uuid(Uuid([0xee; 16])));
    assert_eq!(seen(&part, &host), [None; 4], "a MIG instance has its own UUID");
    part.add_identity(0, Identity::Pci(host[1].pci));
    assert_eq!(seen(&part, &host), [Some(1), None, None, None]);
    part.add_identity(0, Identity::Uuid(uuid(2)));
    assert_eq!(seen(&part, &host), [None; 4], "contradicting identities");
    let kept = (0..=255).filter(|n| part.add_identity(1, Identity::Uuid(Uuid([*n; 16])))).count();
    assert_eq!(kept, IDENTITY_LIMIT);
}

#[test]
fn open_device_files_identify_a_single_gpu_and_override_a_wrong_list() {
    let host = host();
    let using = |view: View, used: &[(u8, Option<&[u32]>)]| {
        let open = |files: &[u32]| files.iter().copied().collect();
        View { used: used.iter().map(|(number, files)| (*number, files.map(open))).collect(), ..view }
    };
    // 255 is the control device
    assert_eq!(seen(&using(View::default(), &[(0, Some(&[2, 255]))]), &host), [Some(1), None, None, None]);
    let later = using(View::default(), &[(0, Some(&[2])), (1, Some(&[2, 0]))]);
    assert_eq!(seen(&later, &host), [Some(1), None, None, None]);
    // numbers count the GPUs that the cgroup allows, not those of the host
    assert_eq!(seen(&using(view(Some("0,1"), true), &[(0, Some(&[0, 1]))]), &host), [None; 4]);
    let right = [Some(3), Some(2), None, None];
    assert_eq!(seen(&using(view(Some("3,2"), true), &[(0, Some(&[0, 1]))]), &host), right);
    for unknown in [None, Some(&[][..])] {
        assert_eq!(seen(&using(view(Some("3,2"), true), &[(1, unknown)]), &host), right);
    }
    assert_eq!(seen(&using(view(Some("3,2"), true), &[(2, None)]), &host), [None; 4], "beyond its end");
}

#[test]
fn the_environment_variables_are_parsed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("environ");
    let of = |text: &[u8]| {
        fs::write(&path, text).unwrap();
        environment_at_start(&path, VARIABLES).map(Environment::new)
    };
    assert_eq!(environment_at_start(&path, VARIABLES), None);
    assert_eq!(of(b""), None);
    assert_eq!(of(b"A=1\0"), Some(Environment::default()));
    let some =
        |visible: &str, by_pci_order| Some(Environment { visible: Some(visible.to_owned()), by_pci_order });
    let two = b"XCUDA_VISIBLE_DEVICES=9\0CUDA_VISIBLE_DEVICES=1,2\0CUDA_VISIBLE_DEVICES=3\0CUDA_DEVICE_ORDER=PCI_BUS_ID\0";
    assert_eq!(of(two), some("1,2", true));
    assert_eq!(of(b"CUDA_DEVICE_ORDER=FASTEST_FIRST\0CUDA_VISIBLE_DEVICES=\0"), some("", false));
    let no_text = View { environment: of(b"CUDA_VISIBLE_DEVICES=\xff\xfe\0"), ..View::default() };
    assert_eq!(seen(&no_text, &host()), [None; 4]);
}

#[test]
fn device_files_are_identified_by_number_not_by_name() {
    // the memory devices: null is 3, zero is 5
    const MEMORY_MAJOR: u64 = 1;
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(device_numbers(&folder.path().join("none"), MEMORY_MAJOR), None);
    symlink("/dev/null", folder.path().join("7")).unwrap();
    symlink("/dev/zero", folder.path().join("nvidia0")).unwrap();
    symlink("/gone", folder.path().join("8")).unwrap();
    fs::write(folder.path().join("nvidia1"), "").unwrap();
    assert_eq!(device_numbers(folder.path(), MEMORY_MAJOR), Some([3, 5].into()));
    assert_eq!(device_numbers(folder.path(), NVIDIA_MAJOR), Some([].into()));
}

#[test]
fn this_process_has_an_environment_and_no_gpu() {
    let mut view = View::of(Path::new("/proc"), std::process::id());
    assert!(view.environment.is_some() && !view.is_used(0));
    view.uses(Path::new("/proc"), std::process::id(), 0);
    assert!(view.is_used(0));
    assert_eq!(View::of(Path::new("/nowhere"), 1).environment, None);
}
