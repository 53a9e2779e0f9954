//! Finds and loads ROCm SMI. It is never unloaded, because it starts threads of its own in some releases.

use std::env;
use std::ffi::{CString, OsStr, OsString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::host::shared_library::{find, trusted_file};

/// The names of its file. Releases have different ones, and Debian's package again another one.
const NAMES: [&str; 5] = [
    "librocm_smi64.so.7",
    "librocm_smi64.so.6",
    "librocm_smi64.so.5",
    "librocm_smi64.so.1",
    "librocm_smi64.so",
];
/// Where AMD's packages install it, if the cache of the dynamic loader does not have it.
const FOLDER: &str = "/opt/rocm/lib";

/// What a function returns; 0 if it succeeded.
pub(super) type Status = u32;

/// The file that is loaded, or why none is.
pub(super) fn rocm_smi_file() -> Result<PathBuf, String> {
    let listed = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders = listed;
    folders.push(":");
    folders.push(FOLDER);
    let found = NAMES.iter().find_map(|name| find(OsStr::new(name), Some(folders.clone())));
    let found = found.ok_or_else(|| format!("there is no {}", NAMES[NAMES.len() - 1]))?;
    trusted_file(&found).map_err(|error| {
        format!(
            "the ROCm SMI library {} is not loaded: {error}: only root may be able to write it and its directories",
            found.display()
        )
    })
}

macro_rules! functions {
    ($($field:ident = $name:literal ($($argument:ty),*);)*) => {
        /// The functions that are called; `None` for those that this release does not have.
        pub(super) struct RocmSmi {
            $(pub(super) $field: Option<unsafe extern "C" fn($($argument),*) -> Status>,)*
        }

        impl RocmSmi {
            fn of(library: *mut c_void) -> Self {
                Self {
                    // SAFETY: the functions have these prototypes in all releases of AMD's header, and a null pointer is
                    // `None`.
                    $($field: unsafe {
                        std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($argument),*) -> Status>>(
                            symbol(library, $name),
                        )
                    },)*
                }
            }
        }
    };
}

functions! {
    init = c"rsmi_init" (u64);
    version = c"rsmi_version_get" (*mut Version);
    count = c"rsmi_num_monitor_devices" (*mut u32);
    name = c"rsmi_dev_name_get" (u32, *mut c_char, usize);
    pci = c"rsmi_dev_pci_id_get" (u32, *mut u64);
    busy = c"rsmi_dev_busy_percent_get" (u32, *mut u32);
    memory_busy = c"rsmi_dev_memory_busy_percent_get" (u32, *mut u32);
    memory_total = c"rsmi_dev_memory_total_get" (u32, u32, *mut u64);
    memory_used = c"rsmi_dev_memory_usage_get" (u32, u32, *mut u64);
    temperature = c"rsmi_dev_temp_metric_get" (u32, u32, u32, *mut i64);
    average_power = c"rsmi_dev_power_ave_get" (u32, u32, *mut u64);
    current_power = c"rsmi_dev_current_socket_power_get" (u32, *mut u64);
    power_cap = c"rsmi_dev_power_cap_get" (u32, u32, *mut u64);
    energy = c"rsmi_dev_energy_count_get" (u32, *mut u64, *mut f32, *mut u64);
    clock = c"rsmi_dev_gpu_clk_freq_get" (u32, u32, *mut Words);
    replays = c"rsmi_dev_pci_replay_counter_get" (u32, *mut u64);
    fan = c"rsmi_dev_fan_speed_get" (u32, u32, *mut i64);
    fan_most = c"rsmi_dev_fan_speed_max_get" (u32, u32, *mut u64);
    ecc = c"rsmi_dev_ecc_count_get" (u32, u64, *mut Words);
    process = c"rsmi_compute_process_info_by_pid_get" (u32, *mut Words);
    process_on = c"rsmi_compute_process_info_by_device_get" (u32, u32, *mut Words);
    gpus_of_process = c"rsmi_compute_process_gpus_get" (u32, *mut u32, *mut u32);
}

/// Room for a struct, more than any release writes: they have added fields to some.
pub(super) type Words = [u64; 64];

/// The release. Distributions build it without numbers of AMD's.
#[repr(C)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) patch: u32,
    /// A text that belongs to the library.
    pub(super) build: *const c_char,
}

impl RocmSmi {
    /// Loads the file.
    pub(super) fn load(file: &Path) -> Result<Self, String> {
        let path = CString::new(file.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the path is a terminated text. The library's constructors run; it is one that root has installed, or
        // that the user may load.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(loader_error().to_string_lossy().into_owned());
        }
        Ok(Self::of(library))
    }
}

/// The address of a function; null if the library does not have it.
fn symbol(library: *mut c_void, name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: the library is loaded, and the name is a terminated text.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// What the dynamic loader says about its last failure.
fn loader_error() -> OsString {
    // SAFETY: the text is valid until this thread calls the loader again.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { None } else { Some(std::ffi::CStr::from_ptr(text).to_bytes().to_vec()) }
    };
    OsStr::from_bytes(&text.unwrap_or_else(|| b"the dynamic loader does not say why".to_vec())).to_owned()
}

/// The name of a status, for messages.
pub(super) fn status_name(status: Status) -> String {
    const NAMES: [&str; 18] = [
        "SUCCESS",
        "INVALID_ARGS",
        "NOT_SUPPORTED",
        "FILE_ERROR",
        "PERMISSION",
        "OUT_OF_RESOURCES",
        "INTERNAL_EXCEPTION",
        "INPUT_OUT_OF_BOUNDS",
        "INIT_ERROR",
        "NOT_YET_IMPLEMENTED",
        "NOT_FOUND",
        "INSUFFICIENT_SIZE",
        "INTERRUPT",
        "UNEXPECTED_SIZE",
        "NO_DATA",
        "UNEXPECTED_DATA",
        "BUSY",
        "REFCOUNT_OVERFLOW",
    ];
    let name = usize::try_from(status).ok().and_then(|status| NAMES.get(status));
    name.map_or_else(|| format!("status {status}"), |name| format!("RSMI_STATUS_{name}"))
}
