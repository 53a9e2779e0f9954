//! Keeps the semaphores in a page of the file that is mapped only once.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // lld has two writable segments, and the end of one and the beginning of the other may share a page of the file. The
    // Linux kernel would then take the first mapping of that page for the one with the semaphore. GNU ld has one
    // such segment and ignores this.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,separate-loadable-segments");
}
