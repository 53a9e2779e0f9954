use gpuprobe_event::Tgid;

use super::*;
use crate::stacks::resolver::NoResolver;

const PROCESS: ProcessKey = ProcessKey { tgid: Tgid(7), instance: 9 };
const SP: u64 = 0x7000;

/// The stack of a call that returns to 5, in a function that returns to `outer`, with `bytes` of it copied.
fn sent(number: u32, outer: u64, bytes: usize) -> (RawStack, Stack) {
    let mut copy = vec![0; bytes];
    copy[16..24].copy_from_slice(&outer.to_le_bytes());
    let raw = RawStack {
        id: number.into(),
        ip: 5,
        sp: SP,
        fp: 0,
        lr: 0,
        python: 0,
        has_python: false,
        bytes: copy,
        replaced: Vec::new(),
    };
    let slots = vec![None, Some(SP + 16)];
    (raw, Stack { addresses: vec![5, outer], slots, end: StackEnd::Complete })
}

fn learn(sites: &mut CallSites, number: u32, outer: u64) {
    let (raw, stack) = sent(number, outer, 64);
    sites.learn(PROCESS, &raw, &stack, None);
}

fn row(number: u32, allocations: u64, live: u64) -> SiteRow {
    let counts = gp_site {
        live_bytes: 100 * live,
        live_allocations: live,
        allocations,
        allocated_bytes: 100 * allocations,
        ..gp_site::default()
    };
    SiteRow { process: PROCESS, number, gpu: Some(0), kind: SiteKind::OtherMemory, has_exited: false, counts }
}

#[test]
fn numbers_of_equal_stacks_are_one_site_and_their_rows_one_sum() {
    let mut sites = CallSites::new(1000);
    for (number, outer) in [(1, 50), (2, 60), (3, 50)] {
        learn(&mut sites, number, outer);
    }
    assert_eq!([1, 2, 3, 4].map(|number| sites.site(number).0), [1, 2, 1, 0]);
    let sums = sites.sum(&[row(1, 5, 2), row(2, 1, 1), row(3, 1, 1), row(4, 1, 1)], SiteKind::is_memory);
    let reported: Vec<_> = sums.iter().map(|s| (s.site.0, s.allocations, s.live.live_allocations)).collect();
    assert_eq!(reported, [(0, 1, 1), (1, 6, 3), (2, 1, 1)], "unknown numbers are one site");
}

#[test]
fn folded_rows_add_up_as_before() {
    let mut sites = CallSites::new(1000);
    (1..=3).for_each(|number| learn(&mut sites, number, 50));
    let ended_row = SiteRow { has_exited: true, ..row(1, 4, 2) };
    let rows = [row(1, 5, 0), row(2, 1, 0), row(3, 1, 1), ended_row, row(9, 1, 0)];
    let before = sites.sum(&rows, SiteKind::is_memory);
    assert_eq!(rows.map(|row| sites.is_final(&row)), [false, true, false, true, false]);
    rows.iter()
        .filter(|row| sites.is_final(row))
        .copied()
        .collect::<Vec<_>>()
        .iter()
        .for_each(|row| sites.fold(row));
    assert_eq!(sites.sum(&[rows[0], rows[2], rows[4]], SiteKind::is_memory), before);
    assert_eq!((before[1].freed_with_context_allocations, before[1].freed_with_context_bytes), (2, 200));
    sites.forget(&HashSet::from([PROCESS]));
    assert_eq!((sites.sum(&[], SiteKind::is_memory).len(), sites.site(2)), (0, SiteId::UNKNOWN));
}

#[test]
fn tensors_and_memory_of_one_site_are_separate_sums() {
    let mut sites = CallSites::new(1000);
    (1..=2).for_each(|number| learn(&mut sites, number, 50));
    let tensors = SiteRow { kind: SiteKind::Tensors, ..row(2, 3, 0) };
    let pool = SiteRow { kind: SiteKind::PoolMemory, ..row(2, 7, 0) };
    let rows = [row(1, 5, 2), tensors, pool];
    let allocations = |sites: &CallSites, rows: &[SiteRow], is_wanted: fn(SiteKind) -> bool| {
        sites.sum(rows, is_wanted).iter().map(|sum| (sum.site.0, sum.allocations)).collect::<Vec<_>>()
    };
    let (of_tensors, of_pools) =
        (|kind| kind == SiteKind::Tensors, |kind: SiteKind| kind == SiteKind::PoolMemory);
    for rows in [&rows[..], &rows[..1]] {
        assert_eq!(allocations(&sites, rows, SiteKind::is_memory), [(1, 12)]);
        assert_eq!(allocations(&sites, rows, of_tensors), [(1, 3)]);
        assert_eq!(allocations(&sites, rows, of_pools), [(1, 7)]);
        // the next time without the rows that were folded
        assert!(sites.is_final(&tensors) && sites.is_final(&pool));
        rows.iter().skip(1).for_each(|row| sites.fold(row));
    }
}

/// As if they had waited for too long.
fn give_up_waiting(sites: &mut CallSites) {
    sites.settle_waiting(|_| true);
}

#[test]
fn a_cut_stack_is_recognised_if_its_site_is_known_and_lost_otherwise() {
    let mut sites = CallSites::new(1000);
    for (number, outer) in [(1, 50), (2, 60)] {
        let (raw, stack) = sent(number, outer, number::STACK_PART);
        sites.learn(PROCESS, &raw, &Stack { end: StackEnd::CopyEnds, ..stack }, None);
    }
    learn(&mut sites, 3, 50);
    assert!(sites.recognise(PROCESS, &sent(4, 50, 64).0));
    assert!(!sites.recognise(PROCESS, &sent(5, 70, 64).0));
    sites.recognise_waiting();
    assert_eq!((sites.lost(), sites.waiting.len()), (0, 1), "a complete stack may still come");
    give_up_waiting(&mut sites);
    assert_eq!([1, 2, 3, 4, 5].map(|number| sites.site(number).0), [3, 0, 3, 3, 0]);
    assert_eq!((sites.lost(), sites.shortened(), sites.waiting_bytes), (1, 0, 0));
}

#[test]
fn an_incomplete_stack_is_not_taken_for_a_complete_one() {
    for end in [StackEnd::CopyEnds, StackEnd::NotYet] {
        let mut sites = CallSites::new(1000);
        let (raw, stack) = sent(1, 50, derived::SHORT_STACK);
        let cut = Stack { end, addresses: vec![5], ..stack.clone() };
        sites.learn(PROCESS, &raw, &cut, None);
        sites.learn(PROCESS, &RawStack { id: 2, ..raw.clone() }, &cut, None);
        assert!(!sites.recognise(PROCESS, &raw));
        sites.learn(PROCESS, &RawStack { id: 3, ..raw.clone() }, &stack, None);
        sites.recognise_waiting();
        assert_eq!([1, 2, 3].map(|number| sites.site(number).0), [3, 3, 3], "{end:?}");
    }
}

#[test]
fn a_stack_that_stays_incomplete_has_a_site_of_its_known_frames() {
    let mut sites = CallSites::new(1000);
    let (raw, stack) = sent(1, 50, derived::SHORT_STACK);
    sites.learn(PROCESS, &raw, &Stack { end: StackEnd::CopyEnds, addresses: vec![5], ..stack }, None);
    give_up_waiting(&mut sites);
    assert_eq!((sites.site(1), sites.lost(), sites.shortened()), (SiteId(1), 0, 1));
    assert_eq!(&*sites.stacks[&SiteId(1)].stack.addresses, [5]);
}

#[test]
fn an_incomplete_stack_of_the_backward_pass_says_so() {
    let mut sites = CallSites::new(1000);
    let (raw, stack) = sent(1, 50, 64);
    let autograd = RawStack { id: 2, python: number::PYTHON_AUTOGRAD_THREAD.into(), ..raw.clone() };
    let cut = Stack { end: StackEnd::TooDeep, ..stack.clone() };
    sites.learn(PROCESS, &raw, &cut, None);
    sites.learn(PROCESS, &autograd, &cut, None);
    sites.learn(PROCESS, &RawStack { id: 3, ..autograd }, &stack, None);
    let mut outermost = |site| {
        let frames = sites.frames(SiteId(site), &mut NoResolver);
        frames.last().map(ToString::to_string).unwrap()
    };
    assert_eq!([1, 2, 3].map(&mut outermost), ["0x32", "... (autograd thread)", "0x32"]);
}
