//! Jobs whose processes have no ranks. Nothing says that these belong together, so more than a common command is needed:
//! several servers or notebooks on one host are no job.

use std::collections::HashSet;

use gpuprobe_event::{Api, Tgid};

use super::Candidate;
use super::command::{command_of_all_ranks, is_of_any_program, program};
use super::related;

/// The processes of each job. They have the same command and container, or without containers the same session; or the
/// same program and container, if one of them is in a call of NCCL.
pub(super) fn jobs(candidates: Vec<Candidate<'_>>) -> Vec<Vec<Candidate<'_>>> {
    let commands = candidates.iter().map(common_command).collect();
    let programs = candidates.iter().map(common_program).collect();
    let mut jobs = Vec::new();
    for set in related::sets(candidates, &[commands, programs]) {
        let set = without_helpers(set);
        if set.iter().any(is_in_nccl) {
            jobs.push(set);
        } else {
            let commands = set.iter().map(common_command).collect();
            jobs.extend(related::sets(set, &[commands]).into_iter().filter(|set| are_in_calls(set)));
        }
    }
    jobs
}

/// What processes have in common that were started together by the same command.
fn common_command(candidate: &Candidate<'_>) -> Option<String> {
    let process = candidate.process;
    let session = || process.session.map(|session| format!("session {session}"));
    let place =
        process.container.as_ref().map(|container| format!("container {container}")).or_else(session)?;
    Some(format!("{place} {} {}", parent(candidate), command_of_all_ranks(&process.command)))
}

/// What processes of one program in one container have in common.
fn common_program(candidate: &Candidate<'_>) -> Option<String> {
    let process = candidate.process;
    let container = process.container.as_ref()?;
    Some(format!("{container} {} {}", parent(candidate), program(&process.command)))
}

/// The parent, if the command does not say what the program is.
fn parent(candidate: &Candidate<'_>) -> String {
    let process = candidate.process;
    let parent = process.parent.filter(|_| is_of_any_program(&process.command));
    parent.map(|parent| parent.to_string()).unwrap_or_default()
}

/// Leaves out processes that are in no call and only serve others of the set: one that has forked those in calls, and
/// waits for them; and forked ones, such as those that load data, unless others with the same parent are in calls.
fn without_helpers(set: Vec<Candidate<'_>>) -> Vec<Candidate<'_>> {
    let all: HashSet<Tgid> = set.iter().map(Candidate::tgid).collect();
    let calling = set.iter().filter(|candidate| candidate.is_in_call);
    let parents_of_calling: HashSet<Tgid> =
        calling.filter_map(|candidate| candidate.process.parent).collect();
    let serves = |candidate: &Candidate<'_>| {
        let is_forked = |parent: Tgid| all.contains(&parent) && !parents_of_calling.contains(&parent);
        parents_of_calling.contains(&candidate.tgid()) || candidate.process.parent.is_some_and(is_forked)
    };
    set.into_iter().filter(|candidate| candidate.is_in_call || !serves(candidate)).collect()
}

fn is_in_nccl(candidate: &Candidate<'_>) -> bool {
    candidate.activity.api == Some(Api::Nccl)
}

/// Whether at least two are in calls: two programs of which one waits for input are not worth comparing.
fn are_in_calls(set: &[Candidate<'_>]) -> bool {
    set.iter().filter(|candidate| candidate.is_in_call).count() > 1
}
