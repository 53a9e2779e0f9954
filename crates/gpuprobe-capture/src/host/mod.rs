//! What this machine supports, and system settings of this process.

pub(crate) mod clock;
pub(crate) mod heap;
pub(crate) mod kmod_version;
pub(crate) mod linux_support;
pub(crate) mod linux_types;
pub(crate) mod machine_checks;
pub(crate) mod name_services;
pub(crate) mod open_files;
pub(crate) mod privileges;
pub(crate) mod release;
pub(crate) mod seccomp;
pub(crate) mod shared_library;
pub(crate) mod support;
pub(crate) mod terminal;
pub(crate) mod urgency;
pub(crate) mod wake_event;
