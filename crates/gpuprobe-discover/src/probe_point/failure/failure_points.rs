//! Finds where functions of the CUDA runtime record that they fail. Each exported function calls one inner function,
//! which does the work. If that fails, it fetches the state of its thread and stores the status there, for
//! `cudaGetLastError`:
//!
//! ```text
//!     mov  eax, ebx           ; the status of an inner call
//!     test eax, eax
//!     je   success
//!     lea  rdi, [rbp-0x28]
//!     call fetch_state        ; the failure point
//!     mov  rdi, [rbp-0x28]
//!     test rdi, rdi
//!     je   end
//!     mov  esi, ebx
//!     call store_status
//! ```
//!
//! Healthy calls never come here. All functions of a library call the same two functions, which is how they are
//! recognised. A place counts only if the status cannot be 0 there, if only one exported function leads to it, and if
//! it runs at most once in a call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use gpuprobe_event::FunctionId;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::code_chunks::{Budget, CodeChunks};
use super::function_flow::FunctionFlow;
use super::status_register::{MayBeZero, PRESERVED, changes, copied, full, is_never_zero};
use crate::access::RegularFile;
use crate::library::Symbol;

/// The two functions are recognised if so many functions call them. libcudart has about 400.
const FEWEST_SITES: usize = 8;
/// How many instructions the storing of a status has at most.
const LONGEST: usize = 10;

/// An instruction that runs only if a call of a function fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailurePoint {
    pub function: FunctionId,
    pub name: String,
    /// The file offset of the instruction.
    pub offset: u64,
    /// The number of the register with the status (`gp_status_register`).
    pub register: u8,
}

/// The points of the wanted functions, and why others have none.
#[derive(Debug, Default)]
pub(in super::super) struct Found {
    pub(in super::super) points: Vec<FailurePoint>,
    pub(in super::super) unclear: Vec<(String, &'static str)>,
}

impl Found {
    /// No points at all, for one reason.
    pub(in super::super) fn without(reason: &'static str, wanted: &[(&Symbol, FunctionId)]) -> Self {
        let unclear = wanted.iter().map(|(symbol, _)| (symbol.name.clone(), reason)).collect();
        Self { points: Vec::new(), unclear }
    }

    /// Removes points that several functions lead to, through jumps to common code.
    fn without_shared(mut self) -> Self {
        let mut times: HashMap<u64, usize> = HashMap::new();
        self.points.iter().for_each(|point| *times.entry(point.offset).or_default() += 1);
        for point in self.points.extract_if(.., |point| times.get(&point.offset).is_some_and(|n| *n > 1)) {
            self.unclear.push((point.name, SHARED));
        }
        self
    }
}

const SHARED: &str = "other functions of the library run the same instruction if they fail";

/// A place that stores the status of a failed call.
#[derive(Clone, Copy, Debug)]
struct Site {
    /// The call of the function that fetches the state.
    at: u64,
    /// That function and the one that stores the status.
    functions: (u64, u64),
    /// The register with the status, or why it is not known.
    status: Result<Register, &'static str>,
}

/// A function that was followed.
#[derive(Debug)]
struct Followed {
    /// The functions that it calls.
    calls: Vec<u64>,
    jumps_to_export: bool,
    sites: Vec<Site>,
    /// Only if it has sites.
    flow: Option<FunctionFlow>,
}

impl Followed {
    fn new(mut flow: FunctionFlow, exports: &BTreeSet<u64>) -> Self {
        let sites: Vec<_> = flow.instructions().filter_map(|call| site(&flow, call)).collect();
        let (calls, jumps_to_export) = (std::mem::take(&mut flow.calls), flow.jumps_to(exports));
        Self { calls, jumps_to_export, flow: Some(flow).filter(|_| !sites.is_empty()), sites }
    }

    /// The sites that call these functions, with the flow that they are in.
    fn sites(&self, functions: (u64, u64)) -> impl Iterator<Item = (&FunctionFlow, &Site)> {
        let of_them = self.sites.iter().filter(move |site| site.functions == functions);
        self.flow.iter().flat_map(move |flow| of_them.clone().map(move |site| (flow, site)))
    }
}

type Outcome<T> = std::result::Result<T, &'static str>;

/// Finds the points of wanted functions. `exports` are all functions of the runtime, sorted by offset.
pub(in super::super) fn find(
    file: &RegularFile,
    exports: &[Symbol],
    wanted: &[(&Symbol, FunctionId)],
) -> Found {
    let exports: BTreeSet<u64> = exports.iter().map(|symbol| symbol.offset).collect();
    let mut search = Search {
        code: CodeChunks::new(file),
        budget: Budget::new(),
        exports: &exports,
        known: HashMap::new(),
    };
    let calls = search.calls();
    let Some(functions) = search.functions() else {
        return Found::without("how the library records failures is not recognised", wanted);
    };
    let translate = search.translate(functions);
    let mut found = Found::default();
    for &(symbol, function) in wanted {
        match search.points(symbol.offset, &calls, functions, translate) {
            Ok(points) => found.points.extend(points.into_iter().map(|(offset, register)| FailurePoint {
                function,
                name: symbol.name.clone(),
                offset,
                register,
            })),
            Err(reason) => found.unclear.push((symbol.name.clone(), reason)),
        }
    }
    found.without_shared()
}

/// Which functions call which: exports, and the functions that they call.
#[derive(Debug, Default)]
struct Calls {
    of_export: BTreeMap<u64, Vec<u64>>,
    callers: HashMap<u64, BTreeSet<u64>>,
}

impl Calls {
    /// Whether only one function calls this one.
    fn has_one_caller(&self, function: u64) -> bool {
        self.callers.get(&function).is_some_and(|callers| callers.len() == 1)
    }
}

struct Search<'f> {
    code: CodeChunks<'f>,
    budget: Budget,
    exports: &'f BTreeSet<u64>,
    known: HashMap<u64, Outcome<Rc<Followed>>>,
}

impl Search<'_> {
    fn followed(&mut self, entry: u64) -> Outcome<Rc<Followed>> {
        if let Some(known) = self.known.get(&entry) {
            return known.clone();
        }
        let followed = FunctionFlow::walk(entry, &mut self.code, &mut self.budget)
            .map(|flow| Rc::new(Followed::new(flow, self.exports)));
        self.known.insert(entry, followed.clone());
        followed
    }

    /// Follows all exports, and the functions that they call.
    fn calls(&mut self) -> Calls {
        let mut calls = Calls::default();
        for &export in self.exports {
            let Ok(followed) = self.followed(export) else { continue };
            // its calls are those of the function that it ends in
            if followed.jumps_to_export {
                continue;
            }
            for &callee in &followed.calls {
                calls.callers.entry(callee).or_default().insert(export);
            }
            calls.of_export.insert(export, followed.calls.clone());
        }
        let inner: BTreeSet<u64> = calls.callers.keys().copied().collect();
        for &caller in &inner {
            let Ok(followed) = self.followed(caller) else { continue };
            let is_known = |callee: &&u64| inner.contains(callee) || self.exports.contains(callee);
            for &callee in followed.calls.iter().filter(is_known) {
                calls.callers.entry(callee).or_default().insert(caller);
            }
        }
        calls
    }

    /// The functions that fetch the state and store the status: those of most sites.
    fn functions(&self) -> Option<(u64, u64)> {
        let mut counts: BTreeMap<(u64, u64), BTreeSet<u64>> = BTreeMap::new();
        for followed in self.known.values().flatten() {
            for site in &followed.sites {
                counts.entry(site.functions).or_default().insert(site.at);
            }
        }
        most_common(counts)
    }

    /// The function that translates a status of the CUDA driver: the one of which most sites store a result.
    fn translate(&self, functions: (u64, u64)) -> Option<u64> {
        let mut counts: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for followed in self.known.values().flatten() {
            for (flow, site) in followed.sites(functions) {
                let Ok(register) = site.status else { continue };
                if let Err(MayBeZero::ResultOf(function)) = is_never_zero(flow, site.at, register, None) {
                    counts.entry(function).or_default().insert(site.at);
                }
            }
        }
        most_common(counts)
    }

    /// The points of a function and of the inner functions that only it calls: offset, and number of the register.
    fn points(
        &mut self,
        export: u64,
        calls: &Calls,
        functions: (u64, u64),
        translate: Option<u64>,
    ) -> Outcome<BTreeMap<u64, u8>> {
        if calls.callers.contains_key(&export) {
            return Err("other functions of the library call it too");
        }
        let callees = calls.of_export.get(&export).map_or(&[][..], Vec::as_slice);
        let (mut points, mut parts_with_sites, mut is_shared) = (BTreeMap::new(), 0, false);
        for part in std::iter::once(export).chain(callees.iter().copied()) {
            let followed = match self.followed(part) {
                Ok(followed) => followed,
                // a function that others call too is not the one that does the work
                Err(_) if part != export && !calls.has_one_caller(part) => continue,
                Err(reason) => return Err(reason),
            };
            let all: Vec<u64> = followed.sites(functions).map(|(_, site)| site.at).collect();
            if part != export && !calls.has_one_caller(part) {
                is_shared |= !all.is_empty();
                continue;
            }
            parts_with_sites += usize::from(!all.is_empty());
            for (flow, site) in followed.sites(functions) {
                let register = site.status?;
                if is_never_zero(flow, site.at, register, translate).is_err() {
                    return Err("a successful call may run the instruction that records its failure");
                }
                if flow.leads_to(site.at, &all) {
                    return Err("it may record several failures in one call");
                }
                let number = PRESERVED.iter().position(|preserved| *preserved == register);
                points.insert(site.at, number.map_or(0, |number| number as u8));
            }
        }
        match parts_with_sites {
            0 if is_shared => Err(SHARED),
            0 => Err("no instruction was found that runs only if it fails"),
            1 => Ok(points),
            _ => Err("several of its inner functions record failures"),
        }
    }
}

/// What occurs at most of the sites, if there are enough to be sure.
fn most_common<T: Ord>(sites_by: BTreeMap<T, BTreeSet<u64>>) -> Option<T> {
    let all: usize = sites_by.values().map(BTreeSet::len).sum();
    let (most_common, sites) = sites_by.into_iter().max_by_key(|(_, sites)| sites.len())?;
    (sites.len() >= FEWEST_SITES && sites.len() * 4 >= all * 3).then_some(most_common)
}

/// The site that begins with a call, if there is one.
fn site(flow: &FunctionFlow, call: &Instruction) -> Option<Site> {
    let fetch = direct_call(call)?;
    let mut steps = flow.straight_after(call.ip()).take(LONGEST);
    let mut changed = Vec::new();
    let mut expect = |is_it: &dyn Fn(&Instruction) -> bool| {
        for step in steps.by_ref() {
            if is_it(step) {
                return Some(*step);
            }
            if step.flow_control() != FlowControl::Next || step.mnemonic() != Mnemonic::Mov {
                return None;
            }
            changed.push(*step);
        }
        None
    };
    expect(&|step| {
        step.code() == Code::Mov_r64_rm64
            && step.op0_register() == Register::RDI
            && step.op1_kind() == OpKind::Memory
    })?;
    expect(&|step| step.code() == Code::Test_rm64_r64 && step.op0_register() == Register::RDI)?;
    expect(&|step| matches!(step.code(), Code::Je_rel8_64 | Code::Je_rel32_64))?;
    let status =
        expect(&|step| step.op0_kind() == OpKind::Register && full(step.op0_register()) == Register::RSI)?;
    let store = expect(&|step| direct_call(step).is_some()).as_ref().and_then(direct_call)?;
    let status = match copied(&status) {
        Some((_, source)) if !PRESERVED.contains(&source) => {
            Err("its status is not in a register that calls preserve")
        }
        Some((_, source)) if changed.iter().any(|step| changes(step, source)) => {
            Err("its status is in different places")
        }
        Some((_, source)) => Ok(source),
        None => Err("its status is not in a register"),
    };
    Some(Site { at: call.ip(), functions: (fetch, store), status })
}

fn direct_call(instruction: &Instruction) -> Option<u64> {
    (instruction.code() == Code::Call_rel32_64).then(|| instruction.near_branch_target())
}

#[cfg(test)]
mod tests;
