//! Names of users and hosts in a statically linked program.

use std::ffi::{CStr, c_char, c_int};

unsafe extern "C" {
    fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
}

/// What the C library looks names up in, and the services that are part of it.
const SERVICES: [(&CStr, &CStr); 5] = [
    (c"passwd", c"files"),
    (c"group", c"files"),
    (c"initgroups", c"files"),
    (c"hosts", c"files dns"),
    (c"services", c"files"),
];

/// Looks names up in files and by DNS only, whatever `/etc/nsswitch.conf` says. Other services are libraries that belong
/// to the C library of the host, and a statically linked program has another one. To be called before there are threads.
pub fn use_builtin_name_services() {
    for (database, services) in SERVICES {
        // SAFETY: both are strings that end with a zero byte, and the function copies what it keeps. It fails only for
        // a database that the C library does not know, whose names are not looked up then.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn localhost_and_root_are_found() {
        use std::net::ToSocketAddrs;

        super::use_builtin_name_services();
        assert!(("localhost", 1).to_socket_addrs().unwrap().count() > 0);
    }
}
