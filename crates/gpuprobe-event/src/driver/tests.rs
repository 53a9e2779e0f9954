use std::collections::HashSet;

use super::argument::{self, Kind, layouts};
use super::xid::meanings;
use super::*;
use crate::event::Value;
use crate::table::{lines, sections};

const CONTROL: u32 = 0xc020_462a;
const ALLOC_OLD: u32 = 0xc020_462b;
const ALLOC: u32 = 0xc030_462b;

fn version(text: &str) -> Version {
    Version::parse(text)
}

fn name_in(release: &str, device: DeviceKind, request: u32, detail: u32) -> String {
    command_name(version(release), CommandCode { device, request, detail }).text.into_owned()
}

fn control_in(release: &str, detail: u32) -> String {
    name_in(release, DeviceKind::Control, CONTROL, detail)
}

fn argument(size: usize, words: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (offset, word) in words {
        bytes[*offset..offset + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn ioctl(device: DeviceKind, request: u32, argument: &[u8]) -> Ioctl<'_> {
    Ioctl { device, request, argument }
}

fn field(fields: &[(crate::Name, Value)], name: &str) -> Option<Value> {
    fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

/// The same numbers in every run.
fn random() -> impl FnMut() -> u32 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 32).unwrap()
    }
}

#[test]
fn every_row_of_every_table_parses_and_no_release_has_two_names_for_a_number() {
    for (names, text) in names::all() {
        let (rows, first) = (names.rows(), lines(text).next());
        assert_eq!(rows.len(), lines(text).count(), "a row of the table of {first:?} is not read");
        for (at, row) in rows.iter().enumerate() {
            let others = rows[at + 1..].iter().take_while(|other| other.number == row.number);
            assert!(others.clone().all(|other| other.releases & row.releases == 0), "{:#x}", row.number);
            let is_name_byte = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
            assert!(row.name.bytes().all(is_name_byte), "{}", row.name);
        }
    }
}

#[test]
fn commands_have_names() {
    let cases = [
        (DeviceKind::Control, 0xc010_4629, 0, "NV_ESC_RM_FREE"),
        (DeviceKind::Gpu, 0xc004_46c9, 0, "NV_ESC_REGISTER_FD"),
        (DeviceKind::Gpu, 0xc230_46d7, 0, "NV_ESC_NUMA_INFO"),
        (DeviceKind::Control, CONTROL, 0x2080_0102, "NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_GPU_GET_INFO_V2)"),
        (DeviceKind::Control, ALLOC, 0xc86f, "NV_ESC_RM_ALLOC(HOPPER_CHANNEL_GPFIFO_A)"),
        (DeviceKind::Control, ALLOC_OLD, 0x41, "NV_ESC_RM_ALLOC(NV01_ROOT_CLIENT)"),
        (DeviceKind::Uvm, 33, 0, "UVM_MAP_EXTERNAL_ALLOCATION"),
        (DeviceKind::Uvm, 0x3000_0001, 0, "UVM_INITIALIZE"),
        // nothing is known about the detail, so none is shown
        (DeviceKind::Control, CONTROL, 0, "NV_ESC_RM_CONTROL"),
        (DeviceKind::Control, ALLOC, 0, "NV_ESC_RM_ALLOC"),
        // a detail of a command that has none
        (DeviceKind::Control, 0xc010_4629, 7, "NV_ESC_RM_FREE"),
    ];
    for (device, request, detail, expected) in cases {
        let name = command_name(Version::newest(), CommandCode { device, request, detail });
        assert_eq!(name, CommandName { text: expected.into(), is_known: true });
    }
}

#[test]
fn commands_without_a_name_are_shown_as_numbers() {
    let cases = [
        (DeviceKind::Control, 0xc010_46ff, 0, "0xc01046ff"),
        // not of the type of the NVIDIA kernel module
        (DeviceKind::Gpu, 0xc010_472a, 0, "0xc010472a"),
        (DeviceKind::Control, CONTROL, 0x2080_1fff, "NV_ESC_RM_CONTROL(0x20801fff)"),
        (DeviceKind::Control, ALLOC, 0xffff_ffff, "NV_ESC_RM_ALLOC(0xffffffff)"),
        (DeviceKind::Uvm, 1000, 0, "0x3e8"),
        (DeviceKind::Modeset, CONTROL, 0, "0xc020462a"),
        (DeviceKind::Other, 0, 0, "0x0"),
    ];
    for (device, request, detail, expected) in cases {
        let name = command_name(Version::newest(), CommandCode { device, request, detail });
        assert_eq!(name, CommandName { text: expected.into(), is_known: false });
    }
}

#[test]
fn command_numbers_that_are_also_parameter_values_have_the_command_name() {
    // the others are values of parameters: NV0000_CTRL_CMD_SYSTEM_GPS_SYS_GET_MAX_POWER is 0x101 too
    let cases = [
        (0x101, "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION"),
        (0x122, "NV0000_CTRL_CMD_SYSTEM_GPS_CONTROL"),
        (0x147, "NV0000_CTRL_CMD_SYSTEM_PFM_REQ_HNDLR_GET_EXTENDED_PERF_SENSORS"),
        (0x201, "NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS"),
        (0x202, "NV0000_CTRL_CMD_GPU_GET_ID_INFO"),
        (0x2080_1303, "NV2080_CTRL_CMD_FB_GET_INFO_V2"),
        (0x90cd_0101, "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS"),
        (0xc36f_0108, "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN"),
    ];
    for (number, expected) in cases {
        assert_eq!(control_in("580.142", number), format!("NV_ESC_RM_CONTROL({expected})"));
    }
    for value_only in [0x1, 0x100, 0x103, 0x200, 0xffff, 0x8000_0000] {
        assert_eq!(control_in("580.142", value_only), format!("NV_ESC_RM_CONTROL({value_only:#x})"));
    }
    for row in control_names().rows().iter().filter(|row| row.number >> 16 == 0) {
        assert!(row.number > 0x100 && row.name.starts_with("NV0000_CTRL_CMD_"), "{}", row.name);
    }
}

#[test]
fn a_number_has_the_name_of_its_release() {
    let counts = "NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_ECC_GET_VOLATILE_COUNTS)";
    assert_eq!(control_in("550.163.01", 0x2080_3401), counts);
    assert_eq!(control_in("560.35.03", 0x2080_3402), counts);
    assert_eq!(control_in("570.211.01", 0x2080_3401), counts);
    assert_eq!(
        control_in("560.35.03", 0x2080_3401),
        "NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_ECC_GET_ECI_COUNTERS)"
    );
    let last_escape = |release| name_in(release, DeviceKind::Control, 0xc010_465f, 0);
    assert_eq!(last_escape("535.288.01"), "NV_ESC_RM_NVLOG_CTRL");
    assert_eq!(last_escape("550.163.01"), "NV_ESC_RM_LOCKLESS_DIAGNOSTIC");
    // a release without the number: the name of the nearest one
    assert_eq!(name_in("535.288.01", DeviceKind::Uvm, 80, 0), "UVM_DISCARD");
    assert_eq!(name_in("595.45.04", DeviceKind::Control, 0xc010_4632, 0), "NV_ESC_RM_CONFIG_GET");
}

#[test]
fn the_nearest_release_gives_the_names() {
    let known = Version::known();
    assert_eq!((known.first(), known.last()), (Some(&"535.288.01"), Some(&"595.45.04")));
    for release in known {
        assert_eq!((version(release).release(), version(release).is_exact()), (*release, true));
    }
    let cases = [
        // of the same branch
        ("580.159.04", "580.142"),
        ("535.54.03", "535.288.01"),
        (" 580.159.04\n", "580.142"),
        // between two branches, at equal and different distances
        ("545.23.06", "550.163.01"),
        ("575.57.08", "570.211.01"),
        // older and newer than all
        ("470.82.01", "535.288.01"),
        ("1", "535.288.01"),
        ("615.71.09", "595.45.04"),
        ("4294967295.1", "595.45.04"),
        // not a version
        ("", "595.45.04"),
        ("garbage", "595.45.04"),
        ("535x.1", "595.45.04"),
        ("-535", "595.45.04"),
        ("..", "595.45.04"),
        ("99999999999999999999.1", "595.45.04"),
    ];
    for (text, expected) in cases {
        assert_eq!((version(text).release(), version(text).is_exact()), (expected, false), "{text:?}");
    }
    assert_eq!(Version::default(), Version::newest());
    assert!(version(" 580.142\n").is_exact());
    let (near, far) = (version("580.159.04"), version("999.1"));
    assert!(!near.is_of_another_branch("580.159.04") && far.is_of_another_branch("999.1"));
    assert!(version("garbage").is_of_another_branch("garbage"));
    assert!(near.describe().starts_with("command names of 580.142, the nearest of"), "{}", near.describe());
    assert_eq!(version("580.142").describe(), "command names of 580.142");
}

#[test]
fn device_kinds_keep_their_numbers_and_words() {
    for (number, kind) in (0_u8..).zip(DeviceKind::ALL) {
        assert_eq!((kind.number(), DeviceKind::from_number(number)), (number, kind));
        assert_eq!(DeviceKind::from_name(kind.as_str()), Some(kind));
    }
    assert_eq!(DeviceKind::from_number(200), DeviceKind::Other);
    assert_eq!(DeviceKind::Uvm.to_string(), "nvidia-uvm");
}

#[test]
fn every_struct_is_read_and_its_fields_fit_and_do_not_overlap() {
    assert_eq!(layouts().len(), sections(argument::TABLE).len());
    for (header, body) in sections(argument::TABLE) {
        let (name, size) = header.split_once(' ').unwrap_or((header, "0"));
        let size: u32 = size.parse().unwrap();
        let fields = &layouts()[&(Command::from_name(name).unwrap(), size)];
        assert_eq!(fields.len(), body.len(), "{header}");
        assert_eq!(
            fields.iter().map(|field| field.name).collect::<HashSet<_>>().len(),
            fields.len(),
            "{header}"
        );
        let mut end = 0;
        for field in fields {
            assert!(field.offset >= end, "{header}: {} overlaps", field.name);
            let bytes_of_kind: &[usize] = match field.kind {
                Kind::Hex => &[4, 8],
                Kind::Uint => &[1, 4, 8],
                Kind::Int | Kind::Command | Kind::Class | Kind::Status => &[4],
                Kind::Uuid => &[16],
                Kind::Text => &[64],
            };
            assert!(bytes_of_kind.contains(&field.bytes), "{header}: {}", field.name);
            assert_eq!(field.offset % field.bytes.min(4), 0, "{header}: {}", field.name);
            end = field.offset + field.bytes;
        }
        assert!(size == 0 || end <= usize::try_from(size).unwrap(), "{header}");
        // no more bytes of an argument are captured
        assert!(end <= 160, "{header}");
    }
}

#[test]
fn a_control_command_shows_its_fields() {
    let words = [(0, 0xc1d0_0001), (4, 0x5c00_0002), (8, 0x2080_0102), (12, 1), (24, 1036), (28, 0x56)];
    let bytes = argument(32, &words);
    let call = ioctl(DeviceKind::Control, CONTROL, &bytes);
    assert_eq!(call.code().detail, 0x2080_0102);
    assert_eq!(call.status().and_then(status_name), Some("NV_ERR_NOT_SUPPORTED"));
    let expected = [
        ("client", Value::Hex(0xc1d0_0001)),
        ("object", Value::Hex(0x5c00_0002)),
        ("command", Value::Name("NV2080_CTRL_CMD_GPU_GET_INFO_V2".into())),
        ("flags", Value::Hex(1)),
        ("size", Value::Uint(1036)),
    ];
    assert_eq!(call.fields(Version::newest()), expected.map(|(name, value)| (name.into(), value)));
}

#[test]
fn the_size_in_the_request_selects_the_struct_of_an_allocation() {
    let bytes = argument(
        48,
        &[(0, 1), (8, 3), (12, 0xc86f), (24, 0x68), (28, 0x1f), (32, 0x168), (36, 2), (40, 0x51)],
    );
    let old = ioctl(DeviceKind::Control, ALLOC_OLD, &bytes[..32]);
    let new = ioctl(DeviceKind::Control, ALLOC, &bytes);
    for call in [old, new] {
        assert_eq!(call.code().detail, 0xc86f);
        let fields = call.fields(Version::newest());
        assert_eq!(field(&fields, "class"), Some(Value::Name("HOPPER_CHANNEL_GPFIFO_A".into())));
        assert_eq!(field(&fields, "object"), Some(Value::Hex(3)));
    }
    assert_eq!(old.status().and_then(status_name), Some("NV_ERR_INVALID_ARGUMENT"));
    assert_eq!(new.status().and_then(status_name), Some("NV_ERR_NO_MEMORY"));
    assert_eq!(field(&old.fields(Version::newest()), "size"), Some(Value::Uint(0x68)));
    assert_eq!(field(&new.fields(Version::newest()), "size"), Some(Value::Uint(0x168)));
    // for an unknown size nothing is shown
    let unknown = ioctl(DeviceKind::Control, 0xc040_462b, &bytes);
    assert_eq!((unknown.code().detail, unknown.status()), (0, None));
    assert_eq!(unknown.fields(Version::newest()), []);
}

#[test]
fn a_class_that_is_not_the_detail_is_a_field() {
    let bytes = argument(56, &[(12, 0x71), (40, 0)]);
    let call = ioctl(DeviceKind::Control, 0xc038_4627, &bytes);
    assert_eq!((call.code().detail, call.status()), (0, Some(0)));
    let class = field(&call.fields(Version::newest()), "class");
    assert_eq!(class, Some(Value::Name("NV01_MEMORY_SYSTEM_OS_DESCRIPTOR".into())));
    let bytes = argument(56, &[(12, 0xdead)]);
    let unknown = ioctl(DeviceKind::Control, 0xc038_4627, &bytes).fields(Version::newest());
    assert_eq!(field(&unknown, "class"), Some(Value::Hex(0xdead)));
}

#[test]
fn unified_memory_is_read_without_a_size() {
    let mut bytes =
        argument(160, &[(0, 0x1000_0000), (4, 0x7f), (8, 0x20_0000), (52, u32::MAX), (72, 0x1_0006)]);
    bytes[16..32].copy_from_slice(&[0x11; 16]);
    let migrate = ioctl(DeviceKind::Uvm, 51, &bytes);
    assert_eq!(migrate.status().and_then(status_name), Some("NV_WARN_NOTHING_TO_DO"));
    let fields = migrate.fields(Version::newest());
    assert_eq!(field(&fields, "base"), Some(Value::Hex(0x7f_1000_0000)));
    assert_eq!(field(&fields, "length"), Some(Value::Uint(0x20_0000)));
    assert_eq!(field(&fields, "to"), Some(Value::Text("GPU-11111111-1111-1111-1111-111111111111".into())));
    assert_eq!(field(&fields, "numa_node"), Some(Value::Int(-1)));
    let cpu =
        [0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2, 0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73];
    bytes[16..32].copy_from_slice(&cpu);
    let fields = ioctl(DeviceKind::Uvm, 51, &bytes).fields(Version::newest());
    assert_eq!(field(&fields, "to"), Some(Value::Name("CPU".into())));
    // its offset differs between releases
    assert_eq!(ioctl(DeviceKind::Uvm, 42, &bytes).status(), None);
}

#[test]
fn text_ends_at_its_nul_or_with_its_field() {
    let mut bytes = vec![b'x'; 72];
    let shown = |bytes: &[u8]| {
        field(&ioctl(DeviceKind::Control, 0xc048_46d2, bytes).fields(Version::newest()), "version")
    };
    assert_eq!(shown(&bytes), Some(Value::Text("x".repeat(64))));
    bytes[8..17].copy_from_slice(b"580.142\0\xff");
    assert_eq!(shown(&bytes), Some(Value::Text("580.142".into())));
    bytes[8] = 0xff;
    assert_eq!(shown(&bytes), Some(Value::Text("\u{fffd}80.142".into())));
}

#[test]
fn fields_that_were_not_read_are_not_shown_as_0() {
    let nothing = ioctl(DeviceKind::Control, CONTROL, &[]);
    assert_eq!((nothing.code().detail, nothing.status()), (0, None));
    assert_eq!(nothing.fields(Version::newest()), []);
    let bytes = argument(28, &[(0, 1), (8, 0x101)]);
    let cut = ioctl(DeviceKind::Control, CONTROL, &bytes[..26]);
    assert_eq!((cut.code().detail, cut.status()), (0x101, None));
    assert_eq!(field(&cut.fields(Version::newest()), "size"), Some(Value::Unread));
    assert_eq!(field(&cut.fields(Version::newest()), "client"), Some(Value::Hex(1)));
}

#[test]
fn random_arguments_of_any_length_are_harmless() {
    let mut next = random();
    let bytes: Vec<u8> = (0..160).map(|_| next().to_le_bytes()[0]).collect();
    let mut requests: Vec<(DeviceKind, u32)> = layouts()
        .keys()
        .map(|&(command, size)| match command {
            Command::Escape(number) => (DeviceKind::Gpu, 0xc000_4600 | (size << 16) | number),
            Command::Uvm(number) => (DeviceKind::Uvm, number),
        })
        .collect();
    for kind in DeviceKind::ALL {
        requests.extend((0..40).map(|_| (kind, next())));
        requests.extend((0..40).map(|_| (kind, 0x4600 | (next() & 0xffff_00ff))));
    }
    for (device, request) in requests {
        for length in 0..=bytes.len() {
            let call = ioctl(device, request, &bytes[..length]);
            let version = Version::parse(Version::known()[length % Version::known().len()]);
            assert!(!command_name(version, call.code()).text.is_empty());
            assert!(call.status().is_none() || length >= 4);
            assert!(call.fields(version).iter().all(|(name, _)| !name.is_empty()));
        }
    }
}

#[test]
fn names_of_any_code_are_never_empty() {
    let mut next = random();
    for _ in 0..20_000 {
        let device = DeviceKind::from_number(u8::try_from(next() % 8).unwrap());
        let escape = 0xc000_4600 | (next() & 0xff);
        let request = if next() & 1 == 0 { next() } else { escape };
        let detail = next() >> (next() % 32);
        let name = command_name(Version::newest(), CommandCode { device, request, detail });
        assert!(!name.text.is_empty() && (name.is_known || name.text.contains("0x")), "{name:?}");
    }
}

#[test]
fn statuses_have_names() {
    assert_eq!(status_name(0), Some("NV_OK"));
    assert_eq!(status_name(0xffff), Some("NV_ERR_GENERIC"));
    assert_eq!(status_name(0x6b), Some("NV_ERR_PRIV_SEC_VIOLATION"));
    assert_eq!(status_name(0x1_0005), Some("NV_WARN_MORE_PROCESSING_REQUIRED"));
    assert_eq!(status_name(0xdead), None);
}

#[test]
fn xids_have_meanings() {
    let off_bus = xid(79).unwrap();
    assert_eq!(off_bus.name, "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS");
    assert!(
        off_bus.meaning.contains("PCIe") && off_bus.action.is_some_and(|action| action.contains("reboot"))
    );
    assert_eq!(xid(130).map(|xid| xid.meaning), xid(39).map(|xid| xid.meaning));
    assert_eq!(xid(23).unwrap().meaning, "rc logging enabled");
    assert_eq!(xid(23).unwrap().action, None);
    assert_eq!((xid(0), xid(4000), xid(u32::MAX)), (None, None, None));
    let important = [
        13, 31, 32, 38, 43, 45, 48, 61, 62, 63, 64, 68, 69, 74, 79, 92, 94, 95, 109, 119, 120, 121, 140, 143,
    ];
    for number in important {
        assert!(meanings().iter().any(|row| row.is_of(number)), "{number} has no meaning");
    }
}

#[test]
fn meanings_are_short_and_of_known_xids() {
    assert_eq!(meanings().len(), lines(include_str!("../../driver/xid_meanings.tbl")).count());
    for row in meanings() {
        for text in [Some(row.meaning), row.action].into_iter().flatten() {
            assert!(
                text.len() <= 90 && text.is_ascii() && text.trim() == text && !text.ends_with('.'),
                "{text}"
            );
        }
        let bounds = row.numbers.split([',', '-']).map(|number| number.parse().ok().and_then(xid));
        assert!(bounds.clone().all(|known| known.is_some()), "{}: an error that is not known", row.numbers);
    }
    for row in names::all().last().unwrap().0.rows() {
        let of_it = meanings().iter().filter(|meaning| meaning.is_of(row.number)).count();
        assert!(of_it <= 1, "{} has {of_it} meanings", row.number);
    }
}
