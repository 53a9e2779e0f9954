//! `gpuprobe doctor`: what this machine can do, and what to do about what it cannot.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use gpuprobe_capture::{Tier, support};
use gpuprobe_discover::{HostPaths, Inspector, Library, Scan, plan};

use crate::cli::DoctorArgs;
use crate::select::Selection;

pub(crate) fn run(args: &DoctorArgs) -> Result<u8> {
    let proc_root = Path::new("/proc");
    let scan = match args.pid {
        Some(pid) => Inspector::new().of_pid(proc_root, pid)?,
        None => Inspector::new().of_host(proc_root, &HostPaths::default()),
    };
    let support = support();
    let mut out = io::stdout().lock();
    writeln!(out, "kernel      {}", support.kernel)?;
    if support.privileged {
        writeln!(out, "privileges  enough to trace")?;
    } else {
        writeln!(
            out,
            "privileges  NOT enough: run as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE"
        )?;
    }
    let driver = std::fs::read_to_string("/sys/module/nvidia/version");
    let driver = driver.as_deref().map_or("not loaded; stand-ins and traces still work", str::trim);
    writeln!(out, "driver      {driver}")?;
    for feature in &support.features {
        if feature.present {
            writeln!(out, "has         {}", feature.name)?;
        } else {
            writeln!(out, "LACKS       {}: {}", feature.name, feature.without)?;
        }
    }
    match support.best_tier() {
        Some(tier) => writeln!(out, "attach by   {tier}{}", why_not_better(tier, &support))?,
        None => writeln!(out, "attach by   nothing: see what is lacking above")?,
    }
    libraries(&mut out, &scan)?;
    Ok(u8::from(!support.privileged || support.best_tier().is_none()))
}

fn why_not_better(tier: Tier, support: &gpuprobe_capture::Support) -> String {
    let better = Tier::ALL.into_iter().take_while(|t| *t != tier);
    better.filter_map(|t| Some(format!(", not {t}: no {}", support.lacks(t)?.name))).collect()
}

fn libraries(out: &mut impl Write, scan: &Scan) -> Result<()> {
    if scan.libraries.is_empty() {
        writeln!(out, "libraries   no libcuda, libcudart, NVML or NCCL found")?;
    }
    let all = Selection::from_globs(&["*".to_owned()])?;
    for library in &scan.libraries {
        writeln!(out, "library     {}", describe(library, &all))?;
    }
    for skipped in &scan.skipped {
        writeln!(out, "SKIPPED     {}: {}", skipped.path.display(), skipped.reason)?;
    }
    Ok(())
}

fn describe(library: &Library, all: &Selection) -> String {
    let (planned, _) = plan(std::slice::from_ref(library), &|l, name| all.function(l, name));
    let functions = planned.targets.iter().flat_map(|t| &t.functions);
    let (mut count, mut cheap) = (0, 0);
    for function in functions {
        count += 1;
        cheap += u32::from(function.point.cost == gpuprobe_discover::ProbeCost::Emulated);
    }
    let unknown = library.functions.len().saturating_sub(count);
    let unknown =
        if unknown > 0 { format!(", {unknown} not in the catalogue or an alias") } else { String::new() };
    format!(
        "{} ({}, {}): {count} functions can be probed, {cheap} cheaply{unknown}",
        library.path.display(),
        library.kind,
        library.soname,
    )
}
