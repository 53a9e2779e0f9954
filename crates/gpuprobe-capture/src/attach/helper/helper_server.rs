//! The attach helper itself: attaches and detaches probes on request.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::thread::JoinHandle;

use super::helper_client::LinkId;
use super::request::{Probes, Request, answer_line};
use super::target_list::TargetList;
use super::uprobe_link;
use crate::attach::bpf_link::BpfLink;
use crate::host::urgency::Urgent;

/// The programs that were handed over, and the links made with them.
#[derive(Debug)]
pub struct HelperServer {
    targets: TargetList,
    programs: Vec<OwnedFd>,
    links: HashMap<LinkId, BpfLink>,
    /// Threads that detach probes.
    closing: Vec<JoinHandle<()>>,
    made: LinkId,
    urgent: bool,
}

/// How the requests ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelperEnd {
    /// The client said that it is done.
    Done,
    /// The client was killed, or failed.
    ClientExited,
}

impl HelperServer {
    /// Takes ownership of the descriptors that were handed over, and fails if one is not open. With `urgent`, probes
    /// are attached at real-time priority, because processes wait for them in the kernel.
    pub fn receive(files: &[i32], urgent: bool) -> io::Result<Self> {
        let owned = |&file: &i32| {
            // SAFETY: takes a number; the call reports if it is no descriptor.
            let flags = unsafe { libc::fcntl(file, libc::F_GETFD) };
            if flags < 0 || file < 3 {
                return Err(io::Error::from_raw_os_error(libc::EBADF));
            }
            // SAFETY: it is open, and was inherited under this number for this use only.
            Ok(unsafe { OwnedFd::from_raw_fd(file) })
        };
        let mut files = files.iter().map(owned).collect::<io::Result<Vec<_>>>()?.into_iter();
        let (Some(targets), Some(answers)) = (files.next(), files.next()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok(Self {
            targets: TargetList::new(targets, answers),
            programs: files.collect(),
            links: HashMap::new(),
            closing: Vec::new(),
            made: 0,
            urgent,
        })
    }

    /// The watched processes.
    pub fn targets(&self) -> &TargetList {
        &self.targets
    }

    /// Serves requests until the client is done or has exited.
    pub fn serve(&mut self, requests: impl Read, mut answers: impl Write) -> HelperEnd {
        for line in BufReader::new(requests).lines() {
            let answer = match line.ok().as_deref().map(Request::parse) {
                None => return HelperEnd::ClientExited,
                Some(Some(Request::Done)) => return HelperEnd::Done,
                Some(Some(Request::Attach(probes))) => self.attach(&probes),
                Some(Some(Request::Raise(semaphore))) => {
                    uprobe_link::raise(&semaphore).map(|link| self.add(link))
                }
                Some(Some(Request::Detach(links))) => {
                    close_all(self.taken(&links));
                    Ok(0)
                }
                Some(Some(Request::DetachLater(links))) => {
                    self.close_later(&links);
                    Ok(0)
                }
                Some(None) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            };
            let written = answers.write_all(answer_line(&answer).as_bytes()).and_then(|()| answers.flush());
            if written.is_err() {
                return HelperEnd::ClientExited;
            }
        }
        HelperEnd::ClientExited
    }

    fn attach(&mut self, probes: &Probes) -> io::Result<LinkId> {
        let _urgent = self.urgent.then(Urgent::begin);
        let program = self.programs.get(probes.program).ok_or(io::ErrorKind::InvalidInput)?;
        let link = uprobe_link::make(program.as_fd(), probes)?;
        Ok(self.add(link))
    }

    fn add(&mut self, link: BpfLink) -> LinkId {
        self.made += 1;
        self.links.insert(self.made, link);
        self.made
    }

    fn taken(&mut self, links: &[LinkId]) -> Vec<BpfLink> {
        links.iter().filter_map(|link| self.links.remove(link)).collect()
    }

    fn close_later(&mut self, links: &[LinkId]) {
        let links = self.taken(links);
        self.closing.retain(|thread| !thread.is_finished());
        // if no thread can be started, the links are closed here
        self.closing.extend(std::thread::Builder::new().spawn(move || close_all(links)));
    }

    /// Detaches some links, and returns whether there were any. When there are none left, all probes are detached.
    pub fn detach_some(&mut self) -> bool {
        let mut some: Vec<_> = self.links.iter().map(|(id, link)| (!link.is_return(), *id)).collect();
        some.sort_unstable();
        let some: Vec<_> = some.into_iter().map(|(_, id)| id).take(AT_ONCE).collect();
        close_all(self.taken(&some));
        if some.is_empty() {
            self.closing.drain(..).for_each(|thread| drop(thread.join()));
        }
        !some.is_empty()
    }
}

/// How many links are closed at the same time.
const AT_ONCE: usize = 64;

/// Closes links. For each the Linux kernel waits until no CPU runs its programs, some 50 ms; links that are closed at
/// the same time share one wait. (On the perf tier they still wait one after the other.)
///
/// Returns are closed first: a return probe without the probe at the entry of the same function could harm the
/// program.
fn close_all(links: Vec<BpfLink>) {
    let (returns, entries) = links.into_iter().partition(BpfLink::is_return);
    close_at_once(returns);
    close_at_once(entries);
}

fn close_at_once(links: Vec<BpfLink>) {
    let mut links = links.into_iter();
    while links.len() > 0 {
        std::thread::scope(|scope| {
            for link in links.by_ref().take(AT_ONCE) {
                // if no thread can be started, the link is closed here
                std::thread::Builder::new().spawn_scoped(scope, move || drop(link)).ok();
            }
        });
    }
}
