//! CUDA calls with system calls into the NVIDIA kernel module.

use gpuprobe_event::{Api, Call, Class, DeviceSyscall, DeviceTime, Effect, Event, Tid};

use super::call;

/// A system call on a device of the NVIDIA kernel module, inside another call or alone.
fn system_call(id: u64, parent: Option<u64>, name: &str, ns: u64, command: Option<&'static str>) -> Call {
    // inner calls follow each other inside the outer call
    let start_ns = parent.map_or(id * 1_000_000, |_| 1_005_000 + (id - 3) * 15_000);
    let effect = Effect::DeviceSyscall(DeviceSyscall {
        device: Some("nvidiactl".into()),
        command: command.map(Into::into),
    });
    Call { parent, start_ns, status: None, effect, ..call(id, Api::Kernel, name, ns, 0) }
}

/// An allocation with three ioctls, one without, calls outside of CUDA calls, and a thread that waits.
pub(crate) fn kmod_events() -> Vec<Event> {
    const INFO: &str = "NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_GPU_GET_INFO_V2)";
    let refused = Call {
        error: Some("NV_ERR_INVALID_CLASS".into()),
        ..system_call(7, Some(2), "ioctl", 4_000, Some("NV_ESC_RM_ALLOC(0x7fff)"))
    };
    let scheduler = |id, ns| Call {
        name: "uvm_va_space_switch".into(),
        class: Class::Scheduler,
        effect: Effect::None,
        ..system_call(id, None, "ioctl", ns, None)
    };
    let driver = Some(DeviceTime { calls: 3, ns: 61_000 });
    let inner = [
        system_call(3, Some(2), "ioctl", 45_000, Some("NV_ESC_RM_ALLOC(NV01_MEMORY_LOCAL_USER)")),
        system_call(6, Some(2), "ioctl", 12_000, Some(INFO)),
        refused,
    ];
    let mut events: Vec<_> = inner.into_iter().map(|call| Event::Call(Box::new(call))).collect();
    events.extend([
        Event::Call(Box::new(Call {
            parent: Some(1),
            start_ns: 1_004_000,
            driver,
            ..call(2, Api::Driver, "cuMemAlloc_v2", 80_000, 0)
        })),
        Event::Call(Box::new(Call { driver, ..call(1, Api::Runtime, "cudaMalloc", 90_000, 0) })),
        Event::Call(Box::new(call(8, Api::Runtime, "cudaMalloc", 900, 0))),
        Event::Call(Box::new(system_call(9, None, "ioctl", 3_000, Some("UVM_DEINITIALIZE")))),
        Event::Call(Box::new(scheduler(10, 7_000))),
        Event::Call(Box::new(Call { tid: Tid(4250), ..system_call(11, None, "poll", 100_000_000, None) })),
    ]);
    events.extend((12..18).map(|id| Event::Call(Box::new(scheduler(id, 300 * id)))));
    events
}
